"""What the benchmarks measure psgd against: plain MPI, Gloo, NCCL, and PyTorch's training.

Each peer is a program or a module of its own; PyTorch is imported in its processes only. Begin with `raw_mpi.py`
and `torch_train.py`; `processes.py` starts and ends what runs beside the benchmark.
"""
