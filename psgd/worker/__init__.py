"""The worker: what a training loop holds, whatever the strategy, and what workers without servers share.

`interface.py` is the seam that every strategy meets. `local.py` is a single rank, `push_pull.py` a worker of servers.
Workers without servers are in `psgd.strategies`, on `context.py`, `status_rounds.py`, `checkpoint_votes.py`,
`checkpoint_barrier.py`, `liveness.py` and `shared_parameters.py`. Begin with `interface.py`. May import `server`
and the rooms below.
"""
