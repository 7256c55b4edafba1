"""The compiled half of collectives in a node's shared memory.

Every rank has one region (see layout.py) and publishes its progress as one word, its step, which only grows. A call
begins with a line from each rank; after that all ranks take the same number of steps. No kernel blocks: one that has
looked `spins` times without seeing what it waits for returns WAIT, keeps its place in the state, and is called again.

Arrays, tables and states are passed as addresses: unpacking an array argument costs more than a small collective.
"""
