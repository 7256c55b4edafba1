import pytest
from harness.device import cupy

pytestmark = pytest.mark.gpu


class One:
    """A communicator of one rank, as far as it is asked here."""

    rank, size = 0, 1


def test_a_gpu_is_made_once_and_the_way_is_chosen_once():
    cupy()
    from psgd.collectives.device.context import DeviceContext
    from psgd.collectives.device.cuda_aware import CudaAwareMpi

    context = DeviceContext(One(), True, None)
    gpu = context.gpu(0)
    assert context.gpu(0) is gpu
    way = context.transport(gpu)
    assert isinstance(way, CudaAwareMpi) and context.transport(gpu) is way
    context.close()


def test_why_memory_goes_through_the_host_is_said_once(capsys, monkeypatch):
    cupy()
    from psgd.collectives.device import context

    monkeypatch.setattr(context, "_said", False)
    context._say_once("because")
    context._say_once("because")
    assert capsys.readouterr().err == "psgd: because\n"
