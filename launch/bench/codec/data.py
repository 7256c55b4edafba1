"""What codecs are measured on: random updates, and gradients recorded while a network trains."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd import data
from psgd.data.batches import Batches
from psgd.data.normalization import validate
from psgd.data.sampler import Sampler
from psgd.kernels import update
from psgd.nn import models

Updates = list[NDArray[np.float32]]
UPDATES = 4
BATCH, LR = 64, 0.1
TAU = 0.9375  # random updates' large values are 1


def random(n: int, density: float, seed: int) -> Updates:
    """Updates of which a share `density` is +1 or -1 at random places, among noise a thousand times smaller."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(UPDATES):
        one = rng.standard_normal(n, np.float32)
        one *= np.float32(1e-3)
        places = rng.integers(0, n, round(n * density))
        one[places] = rng.choice(np.array([-1, 1], np.float32), places.size)
        made.append(one)
    return made


def recorded(n: int) -> Updates:
    """Gradients of successive steps, times the rate, of an MLP with about `n` parameters on the digits."""
    digits = data.load("digits")
    features = int(np.prod(digits.sample_shape))
    hidden = max(1, (n - digits.classes) // (features + 1 + digits.classes))
    model = models.build("mlp", digits.sample_shape, digits.classes, hidden=hidden)
    params = model.init(0)
    grads = np.zeros_like(params)
    model.bind(params, grads)
    context = model.context(BATCH)
    made = []
    for x, y in _batches(digits):
        model.gradient(context, x, y)
        update.sgd(params, grads, LR, 1.0, 0.0)
        made.append(grads * np.float32(LR))
    return made


def _batches(dataset: Any) -> Iterator[Any]:
    batches = Batches(dataset.train, validate(dataset), BATCH)
    sampler = Sampler(dataset.train.samples, 1, 0, BATCH, 0)
    for step in range(UPDATES):
        yield batches.fetch(sampler.batch(0, step))
