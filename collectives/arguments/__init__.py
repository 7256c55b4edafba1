"""From what a caller passes to one `Call`, which all algorithms work on.

Owns the meaning of mpi4py's arguments (`parse`, `buffer_spec`), views of host and device arrays, the reductions
(`operations`), and the descriptor: the words by which ranks find out whether they make the same call.

May import `mpi` and `shm.layout`. Nothing here communicates. Begin with `parse.py`, one function for each verb.
"""
