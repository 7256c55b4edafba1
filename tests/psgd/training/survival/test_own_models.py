"""A PyTorch module of a user's file goes on without a dead worker: weights and buffers are those of one process."""

import numpy as np
import pytest
from harness import mpi
from harness.losing import SAMPLES, rounds_that_lose_one

from psgd.data import load
from psgd.data.batches import Batches
from psgd.data.normalization import validate
from psgd.data.sampler import Sampler

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.job, pytest.mark.skipif(not mpi.is_open_mpi(), reason="this MPI has no ULFM")]

FILE = """
import torch
from torch import nn

def make():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10)
    )
"""

RUN = """
from pathlib import Path
from mpi4py import MPI
from psgd.config import configure
from psgd.runtime.fail_together import guard
from psgd.runtime.ulfm.leave import leave
from psgd.runtime.ulfm.tolerance import TOLERANCE
from psgd.strategies import buckets
from psgd.training import run, torch_module

buckets.BUCKET_BYTES = 1 << 10
made = []
create = torch_module.TorchModel.__init__
torch_module.TorchModel.__init__ = lambda self, *given: (create(self, *given), made.append(self))[0]
comm = MPI.COMM_WORLD
with guard(comm):
    result = run(configure(epochs=2, batch_size=100, lr=0.1, eval_every=0, save=Path("PATH"), **OPTIONS), comm)
    state = made[0].module.state_dict()
    everyone = TOLERANCE.living(comm).gather(b"".join(state[name].numpy().tobytes() for name in sorted(state)))
    if result is not None:
        assert len(set(everyone)) == 1, "not the same bits on all"
        print(result["samples"], *result["lost_ranks"])
leave(comm, 0)
"""


def one_process(rounds, gone):
    """Its state dict: buffers are the mean of those of the workers that live, counts the first one's."""
    from psgd.training.torch_module import seed_step

    found = {}
    exec(FILE, found)  # as the run does with the same text
    module, digits = found["make"](), load("digits")
    batches = Batches(digits.train, validate(digits), 100, np.float32)
    own = [[buffer.clone() for buffer in module.buffers()] for _ in range(3)]
    for taken in rounds:
        sums, samples = [torch.zeros_like(p) for p in module.parameters()], 0
        for worker, epoch, step, rows in taken:
            if not len(rows):
                continue
            for buffer, value in zip(module.buffers(), own[worker], strict=True):
                buffer.copy_(value)
            seed_step(torch.device("cpu"), 0, worker, epoch, step)
            module.zero_grad()
            x, y = batches.fetch(rows)
            torch.nn.functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y)).backward()
            own[worker] = [buffer.clone() for buffer in module.buffers()]
            sums = [total + len(rows) * p.grad for total, p in zip(sums, module.parameters(), strict=True)]
            samples += len(rows)
        with torch.no_grad():
            for total, parameter in zip(sums, module.parameters(), strict=True):
                parameter.sub_(0.1 * total / samples)
    living = [own[worker] for worker in range(3) if worker != gone]
    for buffer, *values in zip(module.buffers(), *living, strict=True):
        buffer.copy_(torch.stack(values).mean(0) if buffer.is_floating_point() else values[0])
    return module.state_dict()


def check(job, folder, wanted, before="", **options):
    """Runs it on real ranks, of which the first worker dies, and compares what is saved."""
    (folder / "net.py").write_text(FILE)
    options |= {"model": f"{folder}/net.py:make"}
    code = RUN.replace("OPTIONS", repr(options)).replace("PATH", str(folder / "w.npz"))
    servers = options["servers"]
    done = job(3 + servers, before + code, ulfm=True, timeout=180, env={"PSGD_PROGRESS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(2 * SAMPLES), str(servers)]
    with np.load(folder / "w.npz") as saved:
        assert sorted(saved.files) == sorted(wanted)
        for name, right in wanted.items():
            np.testing.assert_allclose(saved[name], right.numpy(), rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(("strategy", "servers"), [("allreduce", 0), ("sync", 1)])
def test_the_first_worker_dies_in_a_step(job, tmp_path, strategy, servers):
    """With buckets on their way while backward runs; the gradient is computed again, and the buffers are not."""
    wanted = one_process(rounds_that_lose_one(100, 2, gone=0, death=2), gone=0)
    check(job, tmp_path, wanted, strategy=strategy, servers=servers, inject="kill:0@3")


DIES = """
import os, signal
from mpi4py import MPI
from psgd.torch import buffers

average = buffers.average

def dies(*given):
    average(*given)
    if MPI.COMM_WORLD.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)

buffers.average = dies
"""


def test_the_first_worker_dies_when_it_has_averaged_the_buffers_and_given_them_to_nobody(job, tmp_path):
    shares = [Sampler(SAMPLES, 3, worker, 100, 0) for worker in range(3)]
    rounds = [[(w, e, s, shares[w].batch(e, s)) for w in range(3)] for e in range(2) for s in range(shares[0].steps)]
    check(job, tmp_path, one_process(rounds, gone=0), DIES, strategy="allreduce", servers=0)
