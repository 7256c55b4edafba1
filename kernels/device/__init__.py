"""Kernels for CUDA GPUs. Nothing here is imported before a device array comes."""
