"""Averaging in pairs goes on without workers that are killed, against a simulation of the order that all recorded."""

import json
from collections import Counter

import numpy as np
import pytest
from harness import mpi
from harness.compressed_simulation import pairs_of_which_some_die
from harness.losing import SAMPLES, softmax

pytestmark = [pytest.mark.job, pytest.mark.skipif(not mpi.is_open_mpi(), reason="this MPI has no ULFM")]
EPOCHS, LR = 2, 0.1

RUN = r"""
import json
import numpy as np
from mpi4py import MPI
from psgd.backend.host import HostBackend
from psgd.collectives.mpi.tags import Tag
from psgd.config import configure
from psgd.runtime.fail_together import guard
from psgd.runtime.ulfm.leave import leave
from psgd.strategies.decentralized import gossip, gossip_exchange
from psgd.training import run

comm = MPI.COMM_WORLD
log = open(f"FOLDER/{comm.rank}", "w", buffering=1)
note = lambda *words: log.write(json.dumps(words) + "\n")
newest = []

def before(kind, name, say):
    made = getattr(kind, name)
    def noting(self, *arguments):
        say(self, *arguments)
        return made(self, *arguments)
    setattr(kind, name, noting)

def after(kind, name, say):
    made = getattr(kind, name)
    def noting(self, *arguments):
        found = made(self, *arguments)
        say(self, *arguments)
        return found
    setattr(kind, name, noting)

def partner(self, rank, tag):
    worker = MPI.Group.Translate_ranks(self._comm.Get_group(), [rank], comm.Get_group())[0]
    note("ask" if tag == Tag.PUSH else "answer", worker)

def keep(self, indices, *rest):
    newest[:] = np.asarray(indices).tolist()

before(HostBackend, "gradient", keep)
before(gossip_exchange.Exchanges, "_send", partner)
after(gossip_exchange.Exchanges, "_move", lambda self: note("move", None))
before(gossip.GossipWorker, "_take_mean", lambda self: note("end", self.params.tolist()))
started = gossip.GossipWorker.start

def start(self):
    started(self)
    take = self._optimizer.take
    def taking(grad, scale, position):
        take(grad, scale, position)
        note("step", list(newest))
    self._optimizer.take = taking

gossip.GossipWorker.start = start
with guard(comm):
    options = dict(epochs=EPOCHS, strategy="decentralized", eval_every=0, lr=LR, model="softmax", **OPTIONS)
    result = run(configure(**options), comm)
    if result is not None:
        print(json.dumps([result["samples"], result["lost_ranks"]]))
leave(comm, 0)
"""


def test_those_that_live_have_taken_all_once(job, tmp_path):
    options = {"peers": "pairs", "inject": "kill:1@7,kill:0@16,compute:0.004"}  # one of each kind, and the first
    text = RUN.replace("OPTIONS", repr(options)).replace("FOLDER", str(tmp_path)).replace("LR", str(LR))
    done = job(4, text.replace("EPOCHS", str(EPOCHS)), ulfm=True, timeout=90)
    assert done.returncode == 0, done.stderr
    samples, lost = json.loads(done.stdout.splitlines()[-1])
    assert samples == EPOCHS * SAMPLES and sorted(lost) == [0, 1]
    logs = [[json.loads(line) for line in (tmp_path / str(w)).read_text().splitlines()] for w in range(4)]
    steps = [[value for what, value in log if what == "step"] for log in logs]
    taken = Counter(sample for w, own in enumerate(steps) if w not in lost for step in own for sample in step)
    # Of what the dead have done some steps have reached others, the first ones, and the rest was done again.
    for worker in lost:
        for step in steps[worker]:
            if any(taken[sample] == EPOCHS for sample in step):
                break
            taken.update(step)
    assert taken == Counter(dict.fromkeys(range(SAMPLES), EPOCHS))
    start, gradient = softmax(32)
    expected = pairs_of_which_some_die(start, logs, lost, LR, gradient)
    for worker, x in expected.items():
        np.testing.assert_allclose(logs[worker][-1][1], x, rtol=1e-4, atol=1e-5)
