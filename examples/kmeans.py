"""Distributed k-means: Lloyd's algorithm on points split by rank, one Allreduce an iteration.

python examples/kmeans.py                                                # 1 rank: 100,000 points in 10 blobs
mpirun -n 4 python examples/kmeans.py --points 1000000 --comm mpi4py     # 4 ranks, with MPI's own Allreduce
mpirun -n 4 python examples/kmeans.py --data points.npy --clusters 20    # the rows of a 2-D array in a file

The first centres are drawn as in k-means++. A cluster without points keeps its centre. Ties go to the first centre.
"""

import argparse
import contextlib
import sys
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

BLOCK = 4096  # points at a time: limits the memory that a pass needs beside the points


def refuse(message: str) -> NoReturn:
    """Ends all ranks with one line from rank 0. All ranks must call it."""
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 0:
        print(f"kmeans.py: {message}", file=sys.stderr, flush=True)
    MPI.COMM_WORLD.Barrier()  # a launcher may kill the others once the first has left
    sys.exit(2)


def open_rows(path: str) -> tuple[Any, str | None]:
    """Maps a `.npy` file, so only rows that are used are read. Returns the array, and what is wrong with it or None."""
    try:
        data = np.load(path, mmap_mode="r", allow_pickle=False)
        good = isinstance(data, np.ndarray) and data.ndim == 2 and data.dtype.kind in "fiu" and data.size > 0
        return data, None if good else f"argument --data: {path}: expected one 2-D array of real numbers, not empty"
    except (OSError, ValueError, EOFError) as error:
        return None, f"argument --data: {path}: {getattr(error, 'strerror', None) or error}"


def blobs(rows: range, options: argparse.Namespace) -> NDArray[np.float64]:
    """Rows of a data set that is the same for any number of ranks: each block has a random generator of its own."""
    middles = np.random.default_rng([options.seed, 1]).uniform(-10, 10, (options.clusters, options.dimensions))
    points = np.empty((len(rows), options.dimensions))
    for start in range(rows.start // BLOCK * BLOCK, rows.stop, BLOCK):
        rng = np.random.default_rng([options.seed, 2, start])
        block = middles[rng.integers(len(middles), size=BLOCK)] + rng.normal(size=(BLOCK, options.dimensions))
        first, last = max(start, rows.start), min(start + BLOCK, rows.stop)
        points[first - rows.start : last - rows.start] = block[first - start : last - start]
    return points


def draw(weights: NDArray[np.float64], target: float) -> int:
    """The first index where the running sum exceeds `target`; never one of weight 0, whatever the rounding."""
    return min(int(np.searchsorted(np.cumsum(weights), target, "right")), int(np.flatnonzero(weights)[-1]))


def first_centres(comm: Any, points: NDArray[Any], options: argparse.Namespace) -> NDArray[np.float64]:
    """k-means++: each new centre is a point, drawn in proportion to its squared distance from the centres so far."""
    rng = np.random.default_rng([options.seed, 3])  # the same on all ranks, which therefore agree on who draws
    centres = np.empty((options.clusters, points.shape[1]))
    squares, chances, weights = np.full(len(points), np.inf), np.ones(len(points)), np.empty(comm.size)
    for j, centre in enumerate(centres):
        comm.Allgather(np.array([chances.sum()]), weights)
        if not weights.any():
            refuse(f"argument --clusters: expected at most {j}, the number of distinct points, got {options.clusters}")
        owner = draw(weights, target := rng.random() * weights.sum())
        if comm.rank == owner:
            centre[:] = points[draw(chances, max(0.0, target - weights[:owner].sum()))]
        comm.Bcast(centre, root=owner)
        for start in range(0, len(points), BLOCK):
            least, apart = squares[start : start + BLOCK], points[start : start + BLOCK] - centre
            np.minimum(least, np.einsum("ij,ij->i", apart, apart), out=least)
        chances = squares
    return centres


def assign(points: NDArray[Any], centres: NDArray[np.float64], mine: NDArray[np.float64]) -> None:
    """Fills `mine` from this rank's points: each cluster's sum of coordinates, then its count, then the inertia."""
    k, d = centres.shape
    mine[:] = 0
    near = centres - (origin := centres.mean(axis=0))  # |x|^2 - 2xc + |c|^2 loses digits far from the origin
    halves = np.einsum("ij,ij->i", near, near) / 2
    for start in range(0, len(points), BLOCK):
        block = np.asarray(points[start : start + BLOCK], np.float64)
        nearest = np.argmin(halves - (block - origin) @ near.T, axis=1)
        mine[: k * d] += np.bincount((nearest[:, None] * d + np.arange(d)).ravel(), block.ravel(), k * d)
        mine[k * d : -1] += np.bincount(nearest, minlength=k)
        apart = block - centres[nearest]
        mine[-1] += np.einsum("ij,ij->", apart, apart)


def lloyd(comm: Any, points: NDArray[Any], centres: NDArray[np.float64], options: argparse.Namespace) -> Any:
    """Moves the centres, in place. Returns iterations, inertia, and whether they are at rest."""
    k, d = centres.shape
    empty = comm.empty if options.comm == "psgd" else np.empty  # psgd's memory is reduced where it lies
    mine, total = empty(k * (d + 1) + 1, np.float64), empty(k * (d + 1) + 1, np.float64)
    iterations, moved = 0, np.inf
    while True:
        assign(points, centres, mine)
        comm.Allreduce(mine, total)  # gives all ranks the same bits, so they stop together
        if not np.isfinite(total).all():
            refuse("argument --data: NaN, infinite or too large numbers among the points")
        if (at_rest := bool(moved <= options.tolerance)) or iterations == options.iterations:
            return iterations, float(total[-1]), at_rest
        sums, counts = total[: k * d].reshape(k, d), total[k * d : -1, None]
        following = np.where(counts > 0, sums / np.maximum(counts, 1), centres)
        moved = np.linalg.norm(following - centres, axis=1).max()
        centres[:] = following
        iterations += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # type: ignore[method-assign]
    parser.add_argument("--data", help="a .npy file: a 2-D array, one point per row (default: Gaussian blobs)")
    parser.add_argument(
        "--comm", choices=["psgd", "mpi4py"], default="psgd", help="whose collectives to use (%(default)s)"
    )
    parser.add_argument("--points", type=int, default=100_000, help="total number of points (%(default)s)")
    parser.add_argument("--dimensions", type=int, default=8, help="dimensions of a point (%(default)s)")
    parser.add_argument("--clusters", type=int, default=10, help="number of centres, and of blobs (%(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="random seed of the blobs and the initial centres (%(default)s)"
    )
    parser.add_argument(
        "--tolerance", type=float, default=1e-6, help="stop when no centre moves further than this (%(default)s)"
    )
    parser.add_argument("--iterations", type=int, default=300, help="maximum number of iterations (%(default)s)")
    options = parser.parse_args()
    for name in ("points", "dimensions", "clusters", "iterations", "seed", "tolerance"):
        if not getattr(options, name) >= (least := int(name not in ("seed", "tolerance"))):
            refuse(f"argument --{name}: expected at least {least}, got {getattr(options, name)}")
    from mpi4py.MPI import COMM_WORLD as world  # starts MPI, which --help does not need

    from psgd import abort_on_exception, collectives

    abort_on_exception()  # an error on one rank ends the job instead of leaving the others waiting
    data, problem = open_rows(options.data) if options.data else (None, None)
    for said in filter(None, world.allgather(problem)):
        refuse(said)
    n = options.points if data is None else len(data)
    rows = range(n * world.rank // world.size, n * (world.rank + 1) // world.size)
    points = blobs(rows, options) if data is None else data[rows.start : rows.stop]
    with collectives.Communicator(world) if options.comm == "psgd" else contextlib.nullcontext(world) as comm:
        centres = first_centres(comm, points, options)
        iterations, inertia, at_rest = lloyd(comm, points, centres, options)
    if world.rank == 0:
        print(f"iterations       {iterations}{'' if at_rest else ' (limit reached, not converged)'}")
        print(f"inertia          {inertia:.10g}")
        print(f"centre checksum  {centres.ravel() @ np.arange(1, centres.size + 1):.10g}", flush=True)


if __name__ == "__main__":
    main()
