"""What a rank gives back, and whom it tells, on real ranks."""

import pytest

from psgd.checkpoint.resume import Plan
from psgd.checkpoint.saver import Saver
from psgd.collectives.mpi.watchdog import BACKGROUND
from psgd.kernels.errors import PeerLostError
from psgd.metrics.run_metrics import RunMetrics
from psgd.runtime.mesh import Mesh
from psgd.teardown import Teardown


def made(comm, servers):
    mesh = Mesh(comm, servers, peers=servers == 0)
    return mesh, Teardown(mesh, Saver(Plan(), mesh, RunMetrics(mesh.workers)))


@pytest.mark.ranks(3)
@pytest.mark.parametrize("servers", [0, 1, 2])
def test_a_failure_is_heard_and_the_first_cause_named(comm, servers):
    mesh, teardown = made(comm, servers)
    teardown.listen()
    waiter = teardown.waiter()
    if mesh.role == "worker" and mesh.index == 0:
        teardown.end(ZeroDivisionError())
    else:  # with one server, worker 1 hears of it from the server
        with pytest.raises(PeerLostError, match=r"worker 0 left psgd\.connect with an error"):
            # Without servers it is the waits of collectives that look for the alarm.
            waiter.until(BACKGROUND.advance if servers == 0 else lambda: False)
        teardown.end(ZeroDivisionError())
    comm.Barrier()
    assert teardown.alarm is None
    assert mesh.world.size == 3, "after a failure nobody gets the communicator's number"
    mesh.free()


@pytest.mark.ranks(3)
@pytest.mark.parametrize("servers", [0, 1])
def test_a_good_end_frees_all(comm, servers):
    for _ in range(30):
        mesh, teardown = made(comm, servers)
        teardown.listen()
        comm.Barrier()
        teardown.end(None)
        assert not mesh.world and teardown.alarm is None
        BACKGROUND.advance()
