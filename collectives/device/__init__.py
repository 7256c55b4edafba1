"""Collectives on arrays in GPU memory: over CUDA-aware MPI, or through pinned host memory where MPI is not.

`ring.py` moves and sums segments in tasks, over one of three transports: `cuda_aware.py` (device pointers given to MPI)
and the two of `staged.py` (pinned memory that a node shares; pinned memory and messages). `cuda.py` is all that touches
CUDA. `detect.py` finds out whether MPI takes device pointers, `pick_gpu.py` which GPU a rank uses.

May import `arguments` and `mpi`. Nothing here is imported before a device array comes. Begin with `ring.py`.
"""
