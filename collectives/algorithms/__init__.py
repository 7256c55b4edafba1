"""Collective algorithms, one a file, over messages or a node's shared memory.

Each is a generator: it starts sends and receives on a `Channel` and yields tests, callables that return True once what
they stand for is done. It is resumed only after the yielded test has returned true, so the same code
serves blocking and non-blocking calls. When it ends, everything that it started is complete. Arrays are 1-D and
contiguous; `send` is either the memory where the result goes or does not overlap it. All ranks pass the same
lengths, parts, segment, operation and root. `native` holds plain functions that call MPI instead, `intranode` runs the
compiled kernels of `shm`.

May import `arguments`, `shm` and `mpi`. Begin with `channel.py`, then `ring.py`.
"""
