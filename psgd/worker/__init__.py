"""The worker: what a training loop holds, whatever the strategy, and what workers without servers share.

Begin with `interface.py`, the contract of every strategy's worker, and `base.py`, its common part. `local.py` is a
single rank, `push_pull.py` a worker of servers; `accumulation.py` and `staged.py` stand in front of any worker.
Workers without servers are in `psgd.strategies`, on `context.py` and the room `serverless`. May import `server` and
the rooms below.
"""
