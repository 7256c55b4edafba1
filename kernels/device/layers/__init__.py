"""The twins of `psgd.kernels.layers` for CUDA GPUs, module by module. Begin with `activation`."""
