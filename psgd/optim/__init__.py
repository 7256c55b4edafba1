"""The optimizer: update rules, learning-rate schedules, scaling by staleness, and the step that joins them.

May import `runtime` and `checkpoint` and the kernels. Begin with `rules.py`.
"""
