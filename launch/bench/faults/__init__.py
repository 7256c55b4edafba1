"""`psgd bench faults`: ranks of training runs are killed at random, and what must hold is checked after each run.

`soak` kills and checks, `pace` says what a run would have taken undisturbed, `medians` sums up many runs, `command` is
the command. Begin with `soak`.
"""
