"""`psgd bench faults`: workers of training runs are killed at random, and what must hold is checked after each run.

`soak.py` kills and checks, `command.py` is the command. Begin with `soak.py`.
"""
