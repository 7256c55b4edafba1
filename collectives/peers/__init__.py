"""Collectives among the GPUs of one host by kernels alone: no message, and no host between the pieces of a call.

`group.py` is what the ranks share: regions of device memory that each has mapped, through CUDA IPC. `choose.py` picks
the kernel and its size, `calls.py` turns a parsed call into a kernel and its arguments, `steps.py` starts it and waits,
`fast.py` does so for a program's repeated calls, `watch.py` ends kernels whose peers have died.

Used where all ranks are on one host, have a GPU each, and can map each other's memory; else `device` moves the data.
May import `device` and all below it. Nothing here is imported before a device array comes. Begin with `group.py`.
"""
