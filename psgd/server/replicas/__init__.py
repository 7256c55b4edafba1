"""Servers that keep each shard twice, so that a run goes on when one of them dies (`--replicas 1`).

Each server has all pushes for the shards that it holds, acts on the same order of events
(`psgd.server.surviving.sequence`), and so has the same bits without being told them. Workers hear from the shard's
first holder (`holders.py`); when that dies, the next one answers, and a third becomes the copy (`moves.py`). What was
pushed and not applied then is pushed again. Begin with `holders.py`, then `replicated_server.py`.
"""
