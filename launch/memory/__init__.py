"""Whether a run fits into this machine, before it is started: what memory there is, and what the run will need.

`limits.py` knows this node's memory and whatever limits it, `cards.py` its GPUs'. `refusal.py` compares them with the
estimate of `psgd.estimate`. Begin with that. Starts no MPI.
"""
