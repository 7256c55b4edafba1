"""Both sides of the wire over MPI: whole vectors, or encoded ones, in messages or through memory that is shared.

`server_transport.py` meets `psgd.server.transport.ServerTransport`; `worker_transport.py` is its counterpart, and the
two `compressed_` files are built on them. Begin with `worker_transport.py`: one exchange is the whole protocol.
"""
