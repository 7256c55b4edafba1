"""Logistic regression in JAX, trained by psgd: handwritten digits, each worker on its own part of them.

    mpirun -n 2 python examples/jax_logistic.py            # 2 workers, all-reduce
    mpirun -n 3 python examples/jax_logistic.py async      # 1 server, 2 workers

The first command prints: allreduce on 2 ranks: 0.98 of 300 digits are read correctly
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

import psgd
from psgd.data import load

BATCH, EPOCHS = 32, 20


def pixels(split):
    return split.x.reshape(-1, 64) / np.float32(split.x.max())


def logits(params, x):
    return x @ params["w"] + params["b"]


def loss_fn(params, x, y):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits(params, x)), y[:, None], axis=1).mean()


def main() -> None:
    psgd.abort_on_exception()
    strategy = sys.argv[1] if len(sys.argv) > 1 else "allreduce"
    digits = load("digits")  # 8 x 8 bytes each; every rank has all, and trains on its own part
    x, y = pixels(digits.train), digits.train.y.astype(np.int32)

    model = psgd.jax.wrap({"w": jnp.zeros((64, 10)), "b": jnp.zeros(10)}, loss_fn)
    with psgd.connect(MPI.COMM_WORLD, model, strategy=strategy, lr=0.5) as ps:
        mine = np.arange(ps.worker, len(x), ps.workers)
        for epoch in range(EPOCHS):
            np.random.default_rng([epoch, ps.worker]).shuffle(mine)
            for start in range(0, len(mine) - BATCH + 1, BATCH):  # batches of one size: compiled once
                rows = mine[start : start + BATCH]
                loss, _ = model.value_and_grad(x[rows], y[rows])
                ps.step(samples=BATCH, loss=float(loss))

    if ps.is_main:
        guess = logits(model.params, pixels(digits.test)).argmax(axis=1)
        right = float((guess == digits.test.y).mean())
        print(f"{strategy} on {MPI.COMM_WORLD.size} ranks: {right:.2f} of {len(guess)} digits are read correctly")


if __name__ == "__main__":
    main()
