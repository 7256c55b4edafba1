"""One process that computes what a run does in which a worker dies: the batches as documented, one after the other."""

import numpy as np

from psgd.backend.host import HostBackend
from psgd.config import TrainConfig
from psgd.data import load
from psgd.data.normalization import validate
from psgd.data.sampler import order
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


def _softmax(batch_size):
    dataset = load("digits")
    model = build("softmax", dataset.sample_shape, dataset.classes)
    backend = HostBackend(model, dataset, validate(dataset), batch_size)
    params = preparation.first_params(TrainConfig(model="softmax"), model)
    backend.prepare(params)
    return params, backend


def softmax(batch_size):
    """The first parameters of the softmax model, and what gives its gradient of one batch."""
    params, backend = _softmax(batch_size)
    return params, lambda x, batch: gradient_of(backend, x, [np.array(batch, np.int64)]).astype(np.float32)


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


def sync_that_loses_one(batch_size, epochs, lr, death):
    """One process that loses worker 1 of 3 at its step `death` (from 0) of the first epoch."""
    params, backend = _softmax(batch_size)
    for taken in rounds_that_lose_one(batch_size, epochs, 1, death):
        batches = [batch for _, _, _, batch in taken]
        params -= (lr * gradient_of(backend, params, batches)).astype(np.float32)
    return params


def named(params):
    """The softmax model's parameters by name, as they are saved."""
    dataset = load("digits")
    layout = build("softmax", dataset.sample_shape, dataset.classes).layout
    return {each.name: params[each.offset : each.stop] for each in layout.parameters}
