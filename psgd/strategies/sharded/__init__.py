"""Data parallelism whose workers each keep a part of parameters, gradients and state.

Begin with `sharded_worker.py`, the worker of all stages; `scattered_buckets.py` sums the gradients of stage 1. What
they exchange by is in `psgd.parallel.sharded`. May import what other strategies may.
"""
