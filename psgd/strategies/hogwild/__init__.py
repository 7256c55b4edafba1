"""hogwild: parameters in memory that a node's workers share, and copies of them that nodes average.

Begin with `hogwild.py`; `nodes.py` and `node_averaging.py` are for several nodes, `counts.py` for what worker 0 shows.
"""
