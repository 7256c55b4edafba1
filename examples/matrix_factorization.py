"""Matrix factorization of sparse ratings with Hogwild: workers of one node write to the same factors, without locks.

    mpirun -n 2 python examples/matrix_factorization.py           # 2 workers, no server
    mpirun -n 2 python examples/matrix_factorization.py allreduce
    python examples/matrix_factorization.py                       # one process

A rating is the product of a user's and an item's factors, and noise. A step reads and writes only the factors of its
batch's users and items, a few of thousands, so workers rarely meet: the case that Hogwild is made for (Niu, Recht, Re
and Wright 2011). The three commands print:

    hogwild on 2 ranks: RMSE 0.1066 on held-out ratings (noise 0.1000, the mean rating 1.0030)
    allreduce on 2 ranks: RMSE 0.1066 on held-out ratings (noise 0.1000, the mean rating 1.0030)
    sync on 1 rank: RMSE 0.1066 on held-out ratings (noise 0.1000, the mean rating 1.0030)
"""

import argparse

import numpy as np
from mpi4py import MPI

import psgd

USERS, ITEMS, FACTORS, NOISE = 2000, 1000, 8, 0.1
BATCH, RATE = 64, 0.1  # the rate of a single rating


def make_ratings(count):
    """Users, items and ratings, the same on every rank; the last sixth is held out."""
    rng = np.random.default_rng(0)
    users, items = rng.integers(USERS, size=count), rng.integers(ITEMS, size=count)
    of_users, of_items = (rng.normal(size=(n, FACTORS)) / FACTORS**0.25 for n in (USERS, ITEMS))
    ratings = (of_users[users] * of_items[items]).sum(1) + NOISE * rng.normal(size=count)
    return users, items, ratings.astype(np.float32)


def factors(vector):
    """Views of the users' and the items' factors in one flat vector."""
    return vector[: USERS * FACTORS].reshape(USERS, FACTORS), vector[USERS * FACTORS :].reshape(ITEMS, FACTORS)


def rmse(vector, users, items, ratings):
    of_users, of_items = factors(vector)
    return float(np.sqrt(np.mean(((of_users[users] * of_items[items]).sum(1) - ratings) ** 2)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("strategy", nargs="?", help="one of psgd's strategies (hogwild; sync on a single rank)")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--ratings", type=int, default=240_000)
    options = parser.parse_args()

    comm = MPI.COMM_WORLD
    psgd.abort_on_exception()
    strategy = options.strategy or ("hogwild" if comm.size > 1 else "sync")
    users, items, ratings = make_ratings(options.ratings)
    known = options.ratings * 5 // 6
    start = np.random.default_rng(1).normal(size=(USERS + ITEMS) * FACTORS) * 0.3
    params = start.astype(np.float32)
    batches = max(1, comm.size - (strategy in ("sync", "async", "ssp", "softsync") and comm.size > 1))
    # Those who step together take the mean of all batches; hogwild's workers each take their own steps.
    rate = RATE * BATCH * (batches if strategy in ("sync", "allreduce") else 1)
    with psgd.connect(comm, params, strategy=strategy, lr=psgd.schedules.cosine(rate, known * options.epochs)) as ps:
        mine = np.arange(ps.worker, known, ps.workers)
        of_users, of_items = factors(ps.params)
        user_grads, item_grads = factors(ps.grads)
        for epoch in range(options.epochs):
            np.random.default_rng([epoch, ps.worker]).shuffle(mine)
            for begin in range(0, len(mine), BATCH):
                rows = mine[begin : begin + BATCH]
                u, i = users[rows], items[rows]
                mine_u, mine_i = of_users[u], of_items[i]  # copies: others write meanwhile
                error = (mine_u * mine_i).sum(1) - ratings[rows]
                ps.grads.fill(0)  # where it stays 0, hogwild neither reads nor writes
                np.add.at(user_grads, u, (error / len(rows))[:, None] * mine_i)
                np.add.at(item_grads, i, (error / len(rows))[:, None] * mine_u)
                ps.step(samples=len(rows), loss=float(error @ error) / len(rows))

    if ps.is_main:
        held_out = users[known:], items[known:], ratings[known:]
        constant = float(np.std(held_out[2]))
        print(
            f"{strategy} on {comm.size} rank{'s' * (comm.size > 1)}: RMSE {rmse(params, *held_out):.4f} on held-out "
            f"ratings (noise {NOISE:.4f}, the mean rating {constant:.4f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
