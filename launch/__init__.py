"""The `psgd` command: what it runs, how it starts and ends ranks, and what it prints.

Rooms: `doctor` (checks of this machine), `slurm` (batch texts), `plot` (pictures of logs), `bench` (benchmarks beside
peers). Nothing outside this folder imports it. Begin with `cli.py`, then `train.py` and `spawn.py`.
"""
