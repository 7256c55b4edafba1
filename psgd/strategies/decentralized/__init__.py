"""Decentralized SGD: compressed updates flooded to all workers, or parameters averaged in pairs.

Begin with `decentralized.py`; `flood_worker.py` and `gossip.py` are the two workers.
"""
