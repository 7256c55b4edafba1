"""How to add to psgd: each thing is one file, one entry of a catalog and one test. Each is added here and used.

`FILE` is the file; it lies beside the program instead of in its room. The entry is what would be one more line in the
catalog. The library takes it by name on real ranks, and so does the command.
"""

import json

import pytest

pytestmark = [pytest.mark.job, pytest.mark.one_mpi]

TRAIN = """
from psgd.launch.cli import main
main(["train", "--epochs", "2", "--json", {words}])
"""


@pytest.fixture
def added(job, tmp_path):
    """Writes the file and runs a program that adds the entry first, on so many ranks; returns its output."""

    def run(ranks: int, file: str, entry: str, program: str, **env: str) -> str:
        (tmp_path / "added.py").write_text(file)
        code = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{entry}\n{program}"
        return job(ranks, code, timeout=60, check=True, env=env).stdout

    return run


def train(*words: str) -> str:
    """A program that runs `psgd train`; its result is the last line."""
    return TRAIN.format(words=", ".join(map(repr, words)))


def result(output: str) -> dict[str, object]:
    return json.loads(output.splitlines()[-1])


POLICY = '''
"""scaled: as async, with a part of each gradient."""

from psgd.server.log import Contribution, LogEntry


class Scaled:
    fixed_order = False

    def __init__(self, workers, share):
        self._share = share

    def on_push(self, push, now):
        return (LogEntry((Contribution(push.worker, push.push, self._share),), (push.worker,)),)

    def on_done(self, worker, now):
        return ()

    def restore(self, point):
        pass


create = Scaled
'''
POLICY_ENTRY = """
from psgd.runtime.option import above_zero
from psgd.strategies.catalog import STRATEGIES, Strategy

options = {"share": above_zero(0.5, "part of a gradient that is applied.")}
STRATEGIES["scaled"] = Strategy("added", options, servers=True)
"""
THREE_STEPS = """
import numpy as np
import psgd
from mpi4py import MPI

params = np.zeros(40)
with psgd.connect(MPI.COMM_WORLD, params, lr=0.5, {options}) as ps:
    for _ in range(3):
        ps.grads[:] = {gradient}
        ps.step()
assert np.array_equal(params, np.full(40, {expected})), params
"""


def test_a_strategy_with_servers(added):
    steps = 'strategy="scaled", share=0.25'
    added(2, POLICY, POLICY_ENTRY, THREE_STEPS.format(options=steps, gradient=1, expected=-3 * 0.5 * 0.25))
    trained = result(added(3, POLICY, POLICY_ENTRY, train("--strategy", "scaled", "--share", "0.75")))
    assert trained["strategy"] == "scaled" and trained["servers"] == 1 and trained["test_accuracy"] > 0.8


WORKER = '''
"""joined: every worker takes the same step along the mean gradient, which MPI sums."""

import numpy as np
from mpi4py import MPI

from psgd.checkpoint.declared import Arrays, Combine, Fact
from psgd.collectives import Communicator
from psgd.worker.serverless.lockstep import LockstepWorker


class JoinedWorker(LockstepWorker):
    def __init__(self, context, power):
        super().__init__(context, Communicator(context.workers), np.zeros_like(context.params))
        self._optimizer = context.optimizer.create(context.params)
        self._factor = 0.5**power
        self._samples = 0

    def _take_step(self, samples, loss):
        self._rounds.note(samples, loss)
        self.grads *= samples
        self._round(done=False)

    def _round(self, done):
        if done:
            self.grads.fill(0)
        total = self._rounds.exchange(done=done)
        self.stop = self._rounds.stop
        if total:
            self._comm.Allreduce(MPI.IN_PLACE, self.grads)
            self._optimizer.take(self.grads, self._factor / total, self._samples)
            self._samples += total
            self.version += 1
            if self._comm.rank == 0:
                self._metrics.progress(self._samples, self.version, self._optimizer.lr)
        self._votes.decide(self._rounds.request, self.version)

    def _kept(self):
        arrays = {"params": self.params, **self._optimizer.arrays}
        return [Arrays(arrays, Combine.ALIKE), Fact("version", self), Fact("samples", self, "_samples"), self._votes]


def create(workers, power):
    return lambda context: JoinedWorker(context, power)
'''
WORKER_ENTRY = """
from psgd.runtime.option import whole
from psgd.strategies.catalog import STRATEGIES, Strategy

STRATEGIES["joined"] = Strategy("added", {"power": whole(0, 0, "halvings of a step.")}, on_device=False)
"""


def test_a_strategy_without_servers(added):
    steps = 'strategy="joined", power=1'
    gradient = "1 + 2 * (ps.worker == 1)"  # 2 in the mean
    added(2, WORKER, WORKER_ENTRY, THREE_STEPS.format(options=steps, gradient=gradient, expected=-3 * 0.5 * 0.5 * 2))
    trained = result(added(2, WORKER, WORKER_ENTRY, train("--strategy", "joined", "--accumulate", "2")))
    assert (trained["strategy"], trained["servers"], trained["workers"]) == ("joined", 0, 2)
    assert trained["test_accuracy"] > 0.8


CODEC = '''
"""whole: sends every element as it is."""

import numpy as np

from psgd.kernels.codecs.codec import Codec
from psgd.kernels.codecs.header import NBYTES, PayloadHeader


class Whole(Codec):
    name = "whole"
    _kind = 15

    def max_nbytes(self):
        return NBYTES + self.n * self.dtype.itemsize

    def _encode(self, update, payload, other_than_zero):
        np.add(update, self.residual, out=payload[NBYTES : self.max_nbytes()].view(self.dtype))
        self.residual[:] = 0
        return self.max_nbytes(), PayloadHeader(self._kind, 0, 0, self.n, self.n, 0.0)

    def _can(self, stated):
        return stated.count == self.n

    def _add(self, payload, out, stated):
        out += payload[NBYTES:].view(self.dtype)
        return True
'''
CODEC_ENTRY = """
from psgd.kernels.codecs.catalog import CODECS, CodecEntry

CODECS["whole"] = CodecEntry("added", "Whole", has_density=False)
"""


def test_a_codec(added):
    options = 'strategy="{}", compress="whole"'
    for strategy in ("sync", "allreduce"):
        steps = THREE_STEPS.format(options=options.format(strategy), gradient="np.arange(40) % 1 + 2", expected=-3.0)
        added(2, CODEC, CODEC_ENTRY, steps, PSGD_CHECK="1")
    trained = result(added(2, CODEC, CODEC_ENTRY, train("--strategy", "allreduce", "--compress", "whole")))
    assert trained["test_accuracy"] > 0.8


RULE = '''
"""signed: a step of the rate along the gradient's sign."""

import numpy as np

from psgd.optim.rules import Rule


def signed(weight_decay=0.0):
    def update(params, grad, state, lr, scale, step):
        params -= lr * np.sign(grad)

    return Rule("signed", lambda params: (), update)
'''
RULE_ENTRY = """
from psgd.optim.catalog import RULES, RuleEntry

RULES["signed"] = RuleEntry("added", "signed")
"""


def test_an_update_rule(added):
    for strategy in ("sync", "allreduce"):
        options = f'strategy="{strategy}", rule="signed"'
        added(2, RULE, RULE_ENTRY, THREE_STEPS.format(options=options, gradient=7, expected=-1.5))
    trained = result(added(3, RULE, RULE_ENTRY, train("--optimizer", "signed", "--lr", "0.001")))
    assert trained["test_accuracy"] > 0.7


MODEL = '''
"""doubled: a linear layer behind one that doubles its input."""

from psgd.nn.layer import Layer
from psgd.nn.linear import Linear
from psgd.nn.reshape import Flatten


class Double(Layer):
    name = "double"

    def output_shape(self, shape):
        return shape

    def allocate(self, room):
        return room.empty(*room.shape)

    def forward(self, state, x, params):
        y = state[: len(x)]
        y[:] = x
        y *= 2
        return y

    def backward(self, state, dy, params, grads):
        dy *= 2
        return dy


def layers(shape, classes):
    return [Flatten(), Double(), Linear(classes)]
'''
MODEL_ENTRY = """
from psgd.nn.catalog import LAYERS, MODELS, ModelEntry

LAYERS["Double"] = "added"
MODELS["doubled"] = ModelEntry("added")
"""
SAME_AS_ON_DOUBLED_SAMPLES = """
import numpy as np
from psgd.nn.models import build

x, y = np.random.default_rng(0).normal(size=(6, 1, 4, 4)), np.arange(6) % 3
found = []
for name, factor in (("doubled", 1), ("softmax", 2)):
    model = build(name, (1, 4, 4), 3, np.float64)
    params = params if found else model.init(0)
    grads = np.zeros_like(params)
    model.bind(params, grads)
    loss = model.gradient(model.context(6), factor * x, y)
    found.append(np.append(grads, loss))
assert np.array_equal(*found)
"""


def test_a_model_and_a_layer(added):
    added(1, MODEL, MODEL_ENTRY, SAME_AS_ON_DOUBLED_SAMPLES)
    trained = result(added(2, MODEL, MODEL_ENTRY, train("--strategy", "allreduce", "--model", "doubled")))
    assert trained["model"] == "doubled" and trained["test_accuracy"] > 0.8


OPTION = '''
"""ssp, where a worker may be ahead by some steps more."""

from psgd.strategies.ssp import BoundedStaleness


def create(workers, staleness, slack):
    return BoundedStaleness(workers, staleness + slack)
'''
OPTION_ENTRY = """
from dataclasses import replace
from psgd.runtime.option import whole
from psgd.strategies.catalog import STRATEGIES

ssp = STRATEGIES["ssp"]
own = {**ssp.own, "slack": whole(0, 2, "steps more that a worker may be ahead.")}
STRATEGIES["ssp"] = replace(ssp, module="added", own=own)
"""
IN_THE_COMMAND = """
import pytest
from click.testing import CliRunner
from psgd.kernels.errors import UsageError
from psgd.launch import options
from psgd.launch.train import train

file = sys.path[0] + "/run.toml"
open(file, "w").write('strategy = "ssp"\\nslack = 5\\n')
assert options.build({}, file).own == {"slack": 5}
assert options.build({"slack": "4"}, file).own == {"slack": 4}
for flags, message in (
    ({"strategy": "ssp", "slack": "-1"}, "--slack: expected a whole number, at least 0, got -1"),
    ({"strategy": "sync", "slack": "1"}, "--slack: strategy sync does not take it, expected --strategy ssp"),
):
    with pytest.raises(UsageError, match=f"^{message}$"):
        options.build(flags)
shown = " ".join(CliRunner().invoke(train, ["--help"]).output.split())
assert "--slack N ssp: steps more that a worker may be ahead. [default: 2]" in shown
"""


def test_an_option(added):
    added(1, OPTION, OPTION_ENTRY, IN_THE_COMMAND)
    steps = 'strategy="ssp", slack=3'
    added(2, OPTION, OPTION_ENTRY, THREE_STEPS.format(options=steps, gradient=1, expected=-1.5))
    wrong = steps.replace("3", "-1")
    program = THREE_STEPS.format(options=wrong, gradient=1, expected=0)
    refused = (
        "try:\n" + "".join(f"    {line}\n" for line in program.splitlines()) + "except psgd.UsageError as error:\n"
    )
    said = added(2, OPTION, OPTION_ENTRY, refused + "    print(error)")
    assert said.count("slack: expected a whole number, at least 0, got -1") == 2


ALGORITHM = '''
"""through_first: everyone sends to rank 0, which reduces and sends the result to all."""


def allreduce(channel, send, recv, op):
    if channel.rank:
        yield channel.send(0, send)
        yield channel.receive(0, recv)
        return
    came = channel.scratch("through_first", send.size, send.dtype)
    if recv is not send:
        recv[:] = send
    for rank in range(1, channel.size):
        yield channel.receive(rank, came)
        op.combine(recv, recv, came)
    op.finish(recv, channel.size)
    for rank in range(1, channel.size):
        yield channel.send(rank, recv)
'''
ALGORITHM_ENTRY = """
from psgd.collectives.algorithms.catalog import ALGORITHMS, MESSAGES, Algorithm

ALGORITHMS["through_first"] = Algorithm("added", {"Allreduce": "allreduce"}, MESSAGES, "a test", "through rank 0")
"""
ALLREDUCE = """
import numpy as np
from mpi4py import MPI
from psgd.collectives import Communicator

comm = Communicator(MPI.COMM_WORLD)
for n in (1, 1000):
    x = np.arange(n) + 10.0 * comm.rank
    comm.Allreduce(MPI.IN_PLACE, x, algorithm="through_first")
    assert np.array_equal(x, 3 * np.arange(n) + 30.0), x
    sent, got = np.full(n, 1 + comm.rank), np.zeros(n, int)
    comm.Allreduce(sent, got, MPI.MAX, algorithm="through_first")
    assert (got == 3).all() and (sent == 1 + comm.rank).all()
comm.free()
"""


def test_an_algorithm_of_a_collective(added):
    added(3, ALGORITHM, ALGORITHM_ENTRY, ALLREDUCE)
    words = ["bench", "allreduce", "--sizes", "4KiB", "--algorithm", "through_first", "--repeats", "3", "--no-peers"]
    bench = f"from psgd.launch.cli import main\nmain({[*words, '--json']!r})"
    row = json.loads(added(2, ALGORITHM, ALGORITHM_ENTRY, bench).splitlines()[-1])
    assert row["algorithm"] == "through_first" and row["verified"]
