"""The strategies: which contributions make a step, with which weight, and when a worker may go on.

Owns one file for each strategy (a folder where it needs several), and `catalog.py`, which names them all. A strategy
with servers (`sync`, `async_`, `softsync`, `ssp`) sees headers only, never arrays, and runs on server 0. One without
servers is a worker of its own. May import every room below: `worker`, `server`, `backend`, `checkpoint`, `compression`,
`optim`, `metrics`, `runtime`. Begin with `sync.py`, then `allreduce.py`.
"""

from psgd.strategies.catalog import COMPRESSIBLE, NAMES, ON_DEVICE, create, options, serverless

__all__ = ["COMPRESSIBLE", "NAMES", "ON_DEVICE", "create", "options", "serverless"]
