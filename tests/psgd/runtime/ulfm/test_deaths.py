"""The vocabulary on real ranks, one of which is killed; and the fake that stands for it."""

import pytest
from harness.failures import FakeFailures

from psgd.runtime.ulfm.deaths import means_death

KILLED = r"""
import os, signal, time
import numpy as np
from mpi4py import MPI
from psgd.runtime.ulfm.deaths import MpiDeaths, means_death

comm = MPI.COMM_WORLD.Dup()
rank, failures = comm.rank, MpiDeaths(comm)
assert failures.failed() == set() and failures.agree(7) == 7
sent = comm.Irecv(np.empty(1), 0, 9) if rank == 1 else None
if rank == 2:
    comm.Send(np.array([time.time()]), 1, 5)
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 1:
    died, began = np.empty(1), comm.Irecv(np.empty(1), 3, 1)
    comm.Recv(died, 2, 5)
    while failures.failed() != {2}:
        time.sleep(1e-3)
        began.Test()
    print("seconds", time.time() - died[0])
    failures.ack()
    any_one = comm.Irecv(np.empty(1), MPI.ANY_SOURCE, 77)
    time.sleep(0.1)
    assert not any_one.Test(), "an acknowledged death ends nothing"
    failures.revoke()
    failures.revoke()
else:
    try:
        comm.Recv(np.empty(1), 1, 3)  # waits for one that lives: only the revocation ends it
        raise AssertionError("never sent")
    except MPI.Exception as error:
        assert means_death(error)
living = failures.shrink()
order = living.Get_group().Translate_ranks(None, comm.Get_group())
again = MpiDeaths(living)
print(rank, list(order), living.allreduce(rank), again.agree(6 if rank else 3), failures.agree(12 | rank), flush=True)
living.Barrier()
os._exit(0)  # MPI_Finalize may wait for the dead: psgd.runtime.ulfm.leave
"""


def test_one_is_killed_and_the_others_regroup(job):
    done = job(4, KILLED, ulfm=True)
    assert done.returncode == 0, done.stderr
    said = sorted(line for line in done.stdout.splitlines() if not line.startswith("seconds"))
    assert said == [f"{rank} [0, 1, 3] 4 2 12" for rank in (0, 1, 3)]
    seconds = float(done.stdout.split("seconds ")[1].split()[0])
    assert seconds < 5  # usually below 0.1; the rest is for a crowded machine


def test_not_every_error_is_a_death():
    assert not means_death(ValueError("no"))


@pytest.mark.ranks(1)
def test_an_error_of_the_arguments_is_none(comm):
    from mpi4py import MPI

    with pytest.raises(MPI.Exception) as caught:
        comm.Send(b"", comm.size + 7)
    assert not means_death(caught.value)


def test_the_fake_regroups_alike():
    fake = FakeFailures(4)
    assert fake.failed() == set() and fake.agree(5) == 5
    fake.kill(2)
    assert fake.failed() == {2} and fake.shrink() == [0, 1, 3]
    fake.revoke()
    assert fake.revoked
