"""What the benchmarks measure psgd against: plain MPI, Gloo, NCCL, and PyTorch's training.

Each peer is a program or a module of its own; PyTorch is imported in its processes only.
"""
