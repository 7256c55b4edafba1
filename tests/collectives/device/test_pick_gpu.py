"""A rank's GPU is its local rank among the visible ones; what is missing is named on all ranks."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from psgd.collectives.device import pick_gpu
from psgd.kernels.errors import UsageError


class RuntimeFault(Exception):
    pass


def fake(count, used):
    """A CuPy that sees so many GPUs."""

    def devices():
        if not count:
            raise RuntimeFault("cudaErrorNoDevice")
        return count

    module = ModuleType("cupy")
    runtime = SimpleNamespace(getDeviceCount=devices, CUDARuntimeError=RuntimeFault)
    device = lambda number: SimpleNamespace(use=lambda: used.append(number))  # noqa: E731
    module.cuda = SimpleNamespace(runtime=runtime, Device=device)
    return module


@pytest.mark.ranks(1, 3)
def test_the_local_rank_is_the_place_on_the_node(comm):
    assert pick_gpu.local_rank(comm) == comm.rank


@pytest.mark.ranks(3)
@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_ranks_take_turns_on_the_gpus(comm, gpus):
    used, before = [], sys.modules.get("cupy")
    sys.modules["cupy"] = fake(gpus, used)
    try:
        assert pick_gpu.choose_device(comm) == comm.rank % gpus
    finally:
        sys.modules.pop("cupy") if before is None else sys.modules.update(cupy=before)
    assert used == [comm.rank % gpus]


@pytest.mark.ranks(3)
def test_one_rank_without_is_one_error_on_all(comm):
    used, before = [], sys.modules.get("cupy")
    sys.modules["cupy"] = fake(0 if comm.rank == 1 else 2, used)
    try:
        with pytest.raises(UsageError, match=r"rank 1: device cuda: expected at least one GPU, got none"):
            pick_gpu.choose_device(comm)
    finally:
        sys.modules.pop("cupy") if before is None else sys.modules.update(cupy=before)


@pytest.mark.parametrize(
    ("driver", "words"), [(None, "a machine without NVIDIA's driver"), ("libcuda.so", "expected CuPy")]
)
def test_without_cupy_it_says_what_to_install(monkeypatch, driver, words):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(pick_gpu, "find_library", lambda name: driver)
    monkeypatch.setattr(pick_gpu.Path, "exists", lambda self: False)
    with pytest.raises(UsageError, match=words):
        pick_gpu.visible_devices()


def test_the_error_shows_what_hides_the_gpus(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake(0, []))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(UsageError, match="cudaErrorNoDevice; CUDA_VISIBLE_DEVICES is '7'"):
        pick_gpu.visible_devices()
