"""A server that goes on when workers die, where MPI does (ULFM): `psgd.runtime.ulfm`.

`server_side.py` and `worker_side.py` are the transports: the first notices who died, the second hears of it.
`surviving_server.py` is the loop, which drops the dead from every quorum, and `hand_over.py` what it asks about their
samples. Several servers agree on an order of events (`sequence.py`, without MPI; `agreed_server_side.py`, over
`peers.py`). Begin with `surviving_server.py`.
"""
