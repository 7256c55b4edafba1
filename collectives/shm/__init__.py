"""Collectives in the memory that a node's ranks share, compiled.

Every rank has one region (see layout.py) and publishes its progress as one word, its step, which only grows. A call
begins with a descriptor from each rank; after that all ranks take the same number of steps. No kernel blocks: one that
has looked `spins` times without seeing what it waits for returns WAIT, keeps its place, and is called again. Arrays,
tables and states are passed as addresses: unpacking an array argument costs more than a small collective.

Owns the regions and the memory that ranks register with each other (`registered`), the kernels (`call_kernel` and what
it calls), and `SharedChannel`, which is all that other rooms need. May import `mpi`. Begin with `call_kernel.py`.
"""
