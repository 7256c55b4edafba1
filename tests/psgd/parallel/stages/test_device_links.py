"""Links between simulated GPUs of several ranks: what is mapped, what goes by the hosts, and the end."""

import numpy as np
import pytest
from harness.fake_gpu import FakeGpu

from psgd.parallel.stages import device_links, links
from psgd.parallel.stages.device_slots import DeviceInlet, DeviceOutlet, StagedInlet, StagedOutlet


def until(test):
    while not test():
        pass


@pytest.mark.ranks(3)
@pytest.mark.parametrize("reaches", ["all", "none", "not rank 1", "not shared"])
def test_messages_reach_the_next_stage(comm, reaches):
    gpu = FakeGpu(reaches in ("all", "not shared") or (reaches == "not rank 1" and comm.rank != 1))
    private = comm.Dup()
    every = links.edges([(2,), (3,)], 3, [(2, 2), (2, 2)])
    with pytest.MonkeyPatch.context() as patch:
        if reaches == "not shared":
            patch.setenv("PSGD_SHARED", "0")
        found, mapped = device_links.connect(private, every, 4, np.float32, gpu)
    expected = {"all": {0, 1, 2, 3}, "not rank 1": {0, 3}}.get(reaches, set())
    assert mapped.edges == expected
    mine = found[comm.rank]
    for name, number in (("y", 2 * comm.rank), ("dx", 2 * comm.rank - 1)):
        outlet = getattr(mine, name)
        if outlet is not None:
            assert isinstance(outlet, DeviceOutlet if number in expected else StagedOutlet)
            assert outlet.send(np.full((4, 2 + (number > 1)), number, np.float32), 4)
    for name, number in (("x", 2 * comm.rank - 2), ("dy", 2 * comm.rank + 1)):
        inlet = getattr(mine, name)
        if inlet is not None:
            assert isinstance(inlet, DeviceInlet if number in expected else StagedInlet)
            until(inlet.arrived)
            slot, message, total = inlet.take(4)
            assert (message == number).all() and total == 4
            inlet.release(slot)
    comm.Barrier()
    mine.close()
    mapped.close()
    assert not gpu._kept
    private.Free()


@pytest.mark.ranks(1)
def test_two_stages_of_one_rank(comm):
    gpu, private = FakeGpu(), comm.Dup()
    found, mapped = device_links.connect(private, links.edges([(2,)], 1, [(1, 1)]), 4, np.float32, gpu)
    outlet, inlet = found[0].y, found[1].x
    assert outlet.send(np.ones((4, 2), np.float32), 4) and inlet.arrived() and (inlet.take(4)[1] == 1).all()
    mapped.close()
    private.Free()
