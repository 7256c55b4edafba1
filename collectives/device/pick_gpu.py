"""Which GPU a rank uses: its local rank among the visible ones."""

import os
from ctypes.util import find_library
from pathlib import Path

from mpi4py import MPI

from psgd.collectives.mpi.agreement import together
from psgd.kernels.errors import UsageError


def local_rank(comm: MPI.Intracomm) -> int:
    """This rank's place among those of its node. Collective over `comm`, blocks."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        return int(node.Get_rank())
    finally:
        node.Free()


def visible_devices() -> int:
    """GPUs that this process may use. Makes no context on any.

    Raises:
        UsageError: CuPy is missing, or the driver is.
    """
    try:
        import cupy
    except ImportError as error:
        if find_library("cuda") is None and not Path("/proc/driver/nvidia").exists():
            raise UsageError(
                "device cuda: expected a GPU and CuPy, got a machine without NVIDIA's driver; run on a node with GPUs, "
                "and pip install cupy-cuda13x (or cupy-cuda12x) there"
            ) from error
        raise UsageError(
            f"device cuda: expected CuPy, got {error}; install it: pip install cupy-cuda13x (or cupy-cuda12x)"
        ) from error
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise UsageError(
            f"device cuda: expected at least one GPU, got none ({error}; CUDA_VISIBLE_DEVICES is "
            f"{'not set' if shown is None else repr(shown)}); run nvidia-smi, and ask the scheduler for GPUs"
        ) from error


def choose_device(comm: MPI.Intracomm) -> int:
    """Makes this rank's GPU the current one of the calling thread: its local rank among the visible GPUs.

    Where a node has more ranks than GPUs they take turns. Call it before anything else touches CUDA, so that no rank
    has a context on another's GPU. Collective over `comm`, blocks.

    Returns:
        The GPU's number among the visible ones.

    Raises:
        AgreedUsageError: CuPy or the GPU is missing on some rank; on all ranks.
    """
    place = local_rank(comm)

    def use() -> int:
        chosen = place % visible_devices()
        import cupy

        cupy.cuda.Device(chosen).use()
        return chosen

    return together(comm, "device cuda", use)
