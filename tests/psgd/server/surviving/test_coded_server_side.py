"""`sync` with a codec goes on where a worker dies before its push or in it: the bits of one process."""

import json

import pytest
from harness import mpi
from harness.losing import compressed_sync_that_loses_one, trained

pytestmark = [pytest.mark.job, pytest.mark.skipif(not mpi.is_open_mpi(), reason="this MPI has no ULFM")]

DEATH = 2  # updates that worker 1 makes before
HOOK = """
import os, signal, threading
from mpi4py import MPI
from psgd.server.transports.payloads import Payloads

send, sent = Payloads.send, []

def watched(self, nbytes):
    sent.append(nbytes)
    if MPI.COMM_WORLD.rank == SERVERS + 1 and len(sent) == (DEATH + 1) * SERVERS:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    else:
        send(self, nbytes)

Payloads.send = watched
"""
"""The header goes out, which says that a payload comes, and with several servers all payloads but one."""


def hook(servers):
    return HOOK.replace("SERVERS", str(servers)).replace("DEATH", str(DEATH))


@pytest.mark.parametrize(("name", "in_its_push", "known"), [("topk", True, 2), ("threshold", False, 1)])
def test_sync_is_one_process_that_loses_that_worker_at_that_step(job, tmp_path, name, in_its_push, known):
    """Of a death in a push, which is found as the group is begun, the others hear with their next answer."""
    options = {"strategy": "sync", "servers": 1, "lr": 0.1, "compress": name, "density": 0.05}
    how = {"first": hook(1)} if in_its_push else {"inject": f"kill:1@{DEATH + 1}"}
    said, found = trained(job, tmp_path / "w.npy", ranks=4, **options, **how)
    assert said[0] == "2994" and json.loads(said[1]) == [2]
    expected = compressed_sync_that_loses_one(name, 0.05, 100, 2, 0.1, DEATH, (known, known))
    assert found.tobytes() == expected.tobytes()


def test_of_several_servers_none_applies_what_one_has_not(job, tmp_path):
    """Whole gradients travel at first and now and then; some pushes have no samples, as shares differ by one."""
    options = {"strategy": "sync", "servers": 2, "compress": "onebit", "compress_warmup": 0.3, "compress_sync": 4}
    said, _ = trained(job, tmp_path / "w.npy", ranks=5, first=hook(2), batch_size=83, **options)
    assert said[0] == "2994" and json.loads(said[1]) == [3]
