"""Kernels for CUDA GPUs, bit for bit the host's where their docstrings say so.

A module has the name of the host's module whose twin it is. `elementwise`, `each`, `blas` and `column_sum` are what
they are made of. Nothing here is imported before a device array comes. Begin with `elementwise`.
"""
