"""The centre goes on round those that live, against a simulation of the turns that all have recorded."""

import json
from collections import Counter

import numpy as np
import pytest
from harness import mpi
from harness.losing import SAMPLES, softmax

pytestmark = [pytest.mark.job, pytest.mark.skipif(not mpi.is_open_mpi(), reason="this MPI has no ULFM")]
EPOCHS, LR, RATE = 2, 0.1, np.float32(0.9 / 4)

RUN = r"""
import json
import numpy as np
from mpi4py import MPI
from psgd.backend.host import HostBackend
from psgd.config import configure
from psgd.runtime.fail_together import guard
from psgd.runtime.ulfm.leave import leave
from psgd.strategies.easgd import easgd, surviving_ring
from psgd.strategies.easgd.surviving_round_robin import SurvivingRoundRobinOrder as Order
from psgd.training import run

comm = MPI.COMM_WORLD
log = open(f"FOLDER/{comm.rank}", "w", buffering=1)
note = lambda *words: log.write(json.dumps(words) + "\n")
newest = []

def around(kind, name, before=None, after=None):
    made = getattr(kind, name)
    def noting(self, *arguments):
        if before is not None:
            before(self, *arguments)
        found = made(self, *arguments)
        if after is not None:
            after(self, *arguments)
        return found
    setattr(kind, name, noting)

def keep(self, indices, *rest):
    newest[:] = np.asarray(indices).tolist()

def step(self, samples, position):
    if samples:
        note("step", list(newest))

around(HostBackend, "gradient", before=keep)
around(easgd.EasgdWorker, "_move", before=step)
around(Order, "pull", before=lambda self, rate, lr: note("pull", rate))
around(Order, "push", before=lambda self: note("push", None))
around(Order, "finish", after=lambda self, waited: note("end", self.centre.tolist()))
around(surviving_ring.SurvivingRing, "send", after=lambda self: note("sent", int(self.head[self._own][0])))
options = dict(epochs=EPOCHS, eval_every=0, lr=LR, model="softmax", strategy="easgd", period=3)
options["easgd_order"] = "round-robin"
with guard(comm):
    result = run(configure(**options, inject="INJECT"), comm)
    if result is not None:
        print(json.dumps([result["samples"], result["lost_ranks"]]))
leave(comm, 0)
"""


def turns(logs, deaths):
    """By number, whose turn with the centre it was: what a dead worker has taken and not sent on was taken anew."""
    living = [worker for worker in range(len(logs)) if worker not in deaths]
    return {number: worker for worker in (*deaths, *living) for what, number in logs[worker] if what == "sent"}


def simulated(start, logs, whose, gradient):
    """The final centre."""
    x, centre, at = [start.copy() for _ in logs], start.copy(), [0] * len(logs)
    for number in sorted(whose):
        worker = whose[number]
        log, pulls = logs[worker], False
        while at[worker] < len(log):
            what, value = log[at[worker]]
            at[worker] += 1
            if what == "pull":
                pulls = True
            elif what == "step":
                x[worker] = x[worker] - np.float32(LR) * gradient(x[worker], value)
            elif what == "sent" and value == number:
                break
        if pulls:
            moved = RATE * (x[worker] - centre)
            centre = centre + moved
            # The rest of that step is on the parameters as they were.
            while log[at[worker] : at[worker] + 1] and log[at[worker]][0] in ("step", "push"):
                what, value = log[at[worker]]
                at[worker] += 1
                if what == "push":
                    x[worker] -= moved
                    break
                x[worker] = x[worker] - np.float32(LR) * gradient(x[worker], value)
    return centre


def test_the_turn_passes_over_the_dead(job, tmp_path):
    text = RUN.replace("INJECT", "kill:1@7,kill:0@16,kill:3@22,compute:0.004").replace("FOLDER", str(tmp_path))
    done = job(4, text.replace("EPOCHS", str(EPOCHS)).replace("LR", str(LR)), ulfm=True, timeout=90)
    assert done.returncode == 0, done.stderr
    samples, lost = json.loads(done.stdout.splitlines()[-1])
    assert samples == EPOCHS * SAMPLES and sorted(lost) == [0, 1, 3]
    logs = [[json.loads(line) for line in (tmp_path / str(w)).read_text().splitlines()] for w in range(4)]
    whose = turns(logs, deaths=(1, 0, 3))
    assert sorted(whose) == list(range(1, len(whose) + 1))
    taken = Counter()
    for worker, log in enumerate(logs):
        own = [at for at, (what, number) in enumerate(log) if what == "sent" and whose[number] == worker]
        last = own[-1] + 2 if worker in lost else len(log)  # that step's own samples had been drawn, too
        for what, batch in log[:last]:
            taken.update(batch if what == "step" else ())
    assert taken == Counter(dict.fromkeys(range(SAMPLES), EPOCHS))
    start, gradient = softmax(32)
    expected = simulated(start, logs, whose, gradient)
    np.testing.assert_allclose(logs[2][-1][1], expected, rtol=1e-4, atol=1e-5)
