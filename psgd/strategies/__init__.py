"""The strategies: which contributions make a step, with which weight, and when a worker may continue.

Owns one file for each strategy (a folder where it needs several), and `catalog.py`, which names them all. A strategy
with servers (`sync`, `async_`, `softsync`, `ssp`) sees headers only, never arrays, and runs on server 0. One without
servers is a worker of its own. May import every room below: `worker`, `server`, `backend`, `checkpoint`, `compression`,
`optim`, `metrics`, `runtime`. Begin with `sync.py`, then `allreduce.py`.
"""

from psgd.strategies.catalog import STRATEGIES, Strategy, create

__all__ = ["STRATEGIES", "Strategy", "create"]
