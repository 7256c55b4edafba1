"""The memory of the GPUs that this process may use, asked of the driver alone: no context is made on any."""

import ctypes

_LIBRARY = "libcuda.so.1"


def memory(library: str = _LIBRARY) -> list[int]:
    """Bytes of each visible GPU, in the order of their numbers; empty where there is no driver or no GPU."""
    try:
        cuda = ctypes.CDLL(library)
        total = cuda.cuDeviceTotalMem_v2
    except (OSError, AttributeError):
        return []
    count, device, nbytes = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return []
    found = []
    for index in range(count.value):
        if cuda.cuDeviceGet(ctypes.byref(device), index) or total(ctypes.byref(nbytes), device):
            return []
        found.append(int(nbytes.value))
    return found
