"""Pipeline schedules as data: what each rank computes, in which order; no ranks, no arrays, no NumPy.

Begin with `instruction.py` and `schedule.py`. One file is one schedule, `catalog.py` has their names, and `checker.py`
runs any of them without ranks.
"""
