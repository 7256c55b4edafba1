"""Where a worker's gradients are computed: on this process's cores, or on a GPU.

`interface.py` is the seam, `host.py` and `cuda.py` implement it; the rest serves the GPU: samples and losses there,
pinned memory, update rules of servers with GPUs, which GPU a rank takes. Nothing of CUDA is imported before a run asks
for it. Begin with `interface.py`. May import `data`, `nn`, `optim` and the rooms below.
"""
