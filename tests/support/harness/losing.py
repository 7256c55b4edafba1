"""One process that computes what a run does in which a worker dies: the batches as documented, one after the other."""

import numpy as np

from harness.compressed_simulation import Link
from harness.fused import multiply_add
from psgd.backend.host import HostBackend
from psgd.config import TrainConfig
from psgd.data import load
from psgd.data.normalization import validate
from psgd.data.sampler import order
from psgd.kernels import codecs
from psgd.nn.models import build
from psgd.training import preparation

SAMPLES = 1497  # of the digits


def gradient_of(backend, params, batches):
    """The mean over the samples of the batches, of which some may be empty."""
    grads, total, samples = np.zeros_like(params), np.zeros(params.size), 0
    backend.bind(params, grads)
    for batch in batches:
        if len(batch):
            backend.gradient(batch)
            total += len(batch) * grads.astype(np.float64)
            samples += len(batch)
    return total / samples


def rounds_that_lose_one(batch_size, epochs, gone, death):
    """What three workers that keep pace take in each round, of which one dies in round `death` of the first epoch.

    Returns:
        For each round and worker: who, epoch, step as `psgd.training.survival.course` numbers it, and the samples.
    """

    def cut(samples, steps):
        return [samples[s * batch_size : (s + 1) * batch_size] for s in range(steps)]

    living = [worker for worker in range(3) if worker != gone]
    first = [order(SAMPLES, 0, 0)[w::3] for w in range(3)]
    steps = -(-len(first[0]) // batch_size)
    rounds = [[(w, 0, s, cut(first[w], steps)[s]) for w in range(3)] for s in range(death)]
    rounds.append([(w, 0, death, cut(first[w], steps)[death]) for w in living])
    left = first[gone][death * batch_size :]
    extra = -(-len(left[0::2]) // batch_size)
    rounds += [[(w, 0, steps + 1 + s, cut(left[p::2], extra)[s]) for p, w in enumerate(living)] for s in range(extra)]
    rounds += [[(w, 0, s, cut(first[w], steps)[s]) for w in living] for s in range(death + 1, steps)]
    for epoch in range(1, epochs):
        parts = [order(SAMPLES, 0, epoch)[p::2] for p in range(2)]
        steps = -(-len(parts[0]) // batch_size)
        rounds += [[(w, epoch, s, cut(parts[p], steps)[s]) for p, w in enumerate(living)] for s in range(steps)]
    return rounds


def groups_that_lose_one(batch_size, epochs, death, accumulate=1, known=(1, 1)):
    """What is applied together where worker 1 of 3 has made `death` updates, in the first epoch, as it dies.

    Args:
        batch_size: samples of a gradient.
        epochs: of the run.
        death: updates.
        accumulate: gradients of each worker in an update.
        known: updates that each of the others makes of its own share, from that one on, before it hears of it.

    Returns:
        For each update the batches of each worker that lives.
    """

    def batches(samples, of):
        """Those of one share, as many as the longest share `of` has."""
        steps = -(-len(of) // batch_size)
        return [samples[s * batch_size : (s + 1) * batch_size] for s in range(steps)]

    def cut(streams):
        size = max(map(len, streams))
        return [[stream[at : at + accumulate] for stream in streams] for at in range(0, size, accumulate)]

    first = [order(SAMPLES, 0, 0)[w::3] for w in range(3)]
    done = death * accumulate
    shares = [batches(each, first[0]) for each in first]
    left = first[1][done * batch_size :]
    later = [[order(SAMPLES, 0, epoch)[place::2] for place in range(2)] for epoch in range(1, epochs)]
    alive = []
    for place, worker in enumerate((0, 2)):
        mine, hears = shares[worker], done + known[place] * accumulate
        follows = [batch for parts in later for batch in batches(parts[place], parts[0])]
        alive.append([*mine[done:hears], *batches(left[place::2], left[0::2]), *mine[hears:], *follows])
    return cut([share[:done] for share in shares]) + cut(alive)


def first_backend(batch_size):
    """What computes gradients, and the parameters at first."""
    dataset = load("digits")
    model = build("softmax", dataset.sample_shape, dataset.classes)
    backend = HostBackend(model, dataset, validate(dataset), batch_size)
    params = preparation.first_params(TrainConfig(model="softmax"), model)
    backend.prepare(params)
    return backend, params


def softmax(batch_size):
    """The first parameters of the softmax model, and what gives its gradient of one batch."""
    backend, params = first_backend(batch_size)
    return params, lambda x, batch: gradient_of(backend, x, [np.array(batch, np.int64)]).astype(np.float32)


def sync_that_loses_one(batch_size, epochs, lr, death, accumulate=1):
    """One process that loses worker 1 of 3 behind so many updates."""
    backend, params = first_backend(batch_size)
    for group in groups_that_lose_one(batch_size, epochs, death, accumulate):
        batches = [batch for mine in group for batch in mine]
        params -= (lr * gradient_of(backend, params, batches)).astype(np.float32)
    return params


def compressed_that_loses_one(name, density, batch_size, epochs, lr, death, known):
    """One process with a codec for each worker of `allreduce`, bit for bit, that loses worker 1 of 3."""
    backend, params = first_backend(batch_size)
    momentum = {"momentum": 0.0} if name == "topk" else {}
    each = [codecs.create(name, params.size, params.dtype, density=density, **momentum) for _ in range(3)]
    payload, grads = np.empty(each[0].max_nbytes(), np.uint8), np.zeros_like(params)
    backend.bind(params, grads)
    for group in groups_that_lose_one(batch_size, epochs, death, known=known):
        if len(group) < len(each):
            del each[1]  # with what it had left to send
        counts, said = [len(batch) for (batch,) in group], []
        for codec, (batch,), count in zip(each, group, counts, strict=True):
            update = np.zeros_like(params)
            if count:
                backend.gradient(batch)
                update = np.float32(-lr * count / sum(counts)) * grads
            said.append(payload[: codec.encode(update, payload)].copy())
        for one in said:
            each[0].decode_add(one, params)
    return params


RUN = r"""
import sys
import numpy as np
from mpi4py import MPI
from psgd.config import configure
from psgd.runtime.fail_together import guard
from psgd.runtime.ulfm.leave import leave
from psgd.runtime.ulfm.tolerance import TOLERANCE
from psgd.strategies import buckets
from psgd.training import run, trainer

buckets.BUCKET_BYTES = 1 << 10
FIRST
finals = []
trained = trainer.Trainer.train

def train(self, ps):
    trained(self, ps)
    finals.append(ps)

trainer.Trainer.train = train
comm = MPI.COMM_WORLD
options = dict(epochs=2, model="softmax", batch_size=100, eval_every=0) | OPTIONS
with guard(comm):
    result = run(configure(**options), comm)
    living = TOLERANCE.living(comm)
    everyone = [each for each in living.gather(finals and finals[0].params.tobytes()) or () if each]
    assert (result is None) == (living.rank > 0), "the first has the result"
    if living.rank == 0:
        assert len(set(everyone)) == 1, "not the same bits on all"
        print(result["samples"], result["lost_ranks"])
        np.save("PATH", np.frombuffer(everyone[0], np.float32))
leave(comm, 0)
"""


def trained(job, path, ranks=3, env=None, first="", **options):
    """Trains in a job that loses ranks.

    Args:
        job: the fixture.
        path: of a file to write.
        ranks: servers and workers.
        env: further variables.
        first: code that all ranks run before.
        options: of the run.

    Returns:
        What was said, the samples and the ranks that were lost, and the parameters, the same bits on all.
    """
    code = RUN.replace("OPTIONS", repr(options)).replace("PATH", str(path)).replace("FIRST", first)
    done = job(ranks, code, ulfm=True, timeout=90, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.split(None, 1), np.load(path)


def compressed_sync_that_loses_one(name, density, batch_size, epochs, lr, death, known):
    """One process with the codecs of one server and of each worker of `sync`, bit for bit, that loses worker 1 of 3."""
    backend, params = first_backend(batch_size)
    ups = [Link(name, params.size, params.dtype, density, 0.0) for _ in range(3)]
    down = Link(name, params.size, params.dtype, min(1.0, 3 * density), 0.0)
    seen, grads = [params.copy() for _ in range(3)], np.zeros_like(params)
    for group in groups_that_lose_one(batch_size, epochs, death, known=known):
        if len(group) < len(ups):
            del ups[1], seen[1]
        counts = [len(batch) for (batch,) in group]
        came, total = [], np.zeros_like(params)
        for up, mine, (batch,), count in zip(ups, seen, group, counts, strict=True):
            if count:
                backend.bind(mine, grads)
                backend.gradient(batch)
                came.append(np.zeros_like(params))
                up.say(grads, came[-1])
                total += np.float32(count) * came[-1]
        alone = len(came) == 1
        mean = came[0] if alone else np.float32(1 / sum(counts)) * total
        params[:] = multiply_add(-lr, mean, params)
        for mine in seen:
            down.codec.residual[:] = 0
            down.say(params - mine, mine)
    return params


def named(params):
    """The softmax model's parameters by name, as they are saved."""
    dataset = load("digits")
    layout = build("softmax", dataset.sample_shape, dataset.classes).layout
    return {each.name: params[each.offset : each.stop] for each in layout.parameters}
