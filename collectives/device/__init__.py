"""Collectives on arrays in GPU memory: over CUDA-aware MPI, or through pinned host memory where MPI is not.

`views.py` takes CuPy's, PyTorch's, JAX's and Numba's arrays; `ring.py` moves and sums them in lanes, over one of the
transports `direct.py` (device pointers given to MPI), `mailbox.py` (pinned memory that a node shares) and `relay.py`
(pinned memory and messages). `cuda.py` is all that touches CUDA. Nothing here is imported before a device array comes.
"""
