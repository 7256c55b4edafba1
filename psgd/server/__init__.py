"""The parameter server: headers in, a log of decisions, steps on a shard, parameters out.

`wire.py` is the header that travels, `log.py` what server 0 decides, `policy.py` what it asks a strategy, `shard.py`
the arithmetic, `server.py` the loop. `transport.py` is the seam to MPI, and `transports/` are both sides of it, since
they share the wire. May import `compression`, `optim`, `checkpoint` and the rooms below. Begin with `server.py`.
"""
