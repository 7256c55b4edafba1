"""Steady temperature of a plate with fixed edges: Jacobi's iteration on rows split by rank, with halo exchange.

python examples/heat.py                                             # 1 rank: a plate of 63 x 63 points
mpirun -n 4 python examples/heat.py --rows 127 --columns 127        # 4 ranks; the norm is psgd's Allreduce
mpirun -n 4 python examples/heat.py --comm mpi4py --plot heat.png   # with MPI's own, and a picture (matplotlib)

One edge is hot: sin(pi x), for which the exact solution is known, or 1. The other edges are at 0. An iteration is also
an explicit step of the heat equation, the longest stable one. Temperatures are bitwise the same on any number of ranks.
"""

import argparse
import contextlib
import importlib.util
import sys
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray


def refuse(message: str) -> NoReturn:
    """Ends all ranks with one line from rank 0. All ranks must call it."""
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 0:
        print(f"heat.py: {message}", file=sys.stderr, flush=True)
    MPI.COMM_WORLD.Barrier()  # a launcher may kill the others once the first has left
    sys.exit(2)


def plate(rows: range, options: argparse.Namespace) -> NDArray[np.float64]:
    """The start: 0 except at the hot edge. This rank's rows, with a neighbour's row or an edge on each side."""
    field = np.zeros((len(rows) + 2, options.columns + 2))
    if rows.stop == options.rows:
        x = np.linspace(0, 1, options.columns + 2)[1:-1]
        field[-1, 1:-1] = np.sin(np.pi * x) if options.edge == "sine" else 1.0
    return field


def step(old: NDArray[np.float64], new: NDArray[np.float64]) -> None:
    """Jacobi: each new inner value is the mean of its four old neighbours."""
    inner = new[1:-1, 1:-1]
    np.add(old[:-2, 1:-1], old[2:, 1:-1], out=inner)
    inner += old[1:-1, :-2]
    inner += old[1:-1, 2:]
    inner *= 0.25


def solve(comm: Any, field: NDArray[np.float64], options: argparse.Namespace) -> tuple[Any, int, float]:
    """Iterates until the residual is small. Returns the field, the iterations and the residual.

    The residual is the root mean square of the last iteration's changes: h^2 / 4 times that of the Laplacian.
    """
    from mpi4py import MPI

    above = comm.rank - 1 if comm.rank > 0 else MPI.PROC_NULL
    below = comm.rank + 1 if comm.rank + 1 < comm.size else MPI.PROC_NULL  # PROC_NULL leaves the edge unchanged
    old, new = field, field.copy()
    mine, total = np.zeros(1), np.zeros(1)
    iterations, residual = 0, np.inf
    while iterations < options.iterations and residual > options.tolerance:
        comm.Sendrecv(old[1], above, recvbuf=old[-1], source=below)
        comm.Sendrecv(old[-2], below, recvbuf=old[0], source=above)
        step(old, new)
        iterations += 1
        if iterations % options.every == 0 or iterations == options.iterations:
            change = new[1:-1, 1:-1] - old[1:-1, 1:-1]
            mine[0] = np.einsum("ij,ij->", change, change)
            comm.Allreduce(mine, total)  # gives all ranks the same bits, so they stop together
            residual = float(np.sqrt(total[0] / (options.rows * options.columns)))
        old, new = new, old
    return old, iterations, residual


def analytic(rows: range, options: argparse.Namespace) -> Any:
    """sin(pi x) sinh(pi y) / sinh(pi height) at this rank's points, for the edge "sine". The plate is 1 wide."""
    h = 1 / (options.columns + 1)
    x, y = h * np.arange(1, options.columns + 1), h * np.arange(rows.start + 1, rows.stop + 1)[:, None]
    height = h * (options.rows + 1)  # sinh itself would overflow on a high plate
    return np.sin(np.pi * x) * np.exp(np.pi * (y - height)) * np.expm1(-2 * np.pi * y) / np.expm1(-2 * np.pi * height)


def plot(path: str, field: NDArray[np.float64]) -> None:
    from matplotlib.figure import Figure

    axes = (figure := Figure()).subplots()
    extent = (0, 1, 0, (len(field) + 1) / (field.shape[1] + 1))
    figure.colorbar(axes.imshow(field, origin="lower", cmap="inferno", extent=extent), label="temperature")
    figure.savefig(path, dpi=150)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # type: ignore[method-assign]
    parser.add_argument("--rows", type=int, default=63, help="rows of interior points (%(default)s)")
    parser.add_argument("--columns", type=int, default=63, help="columns of interior points (%(default)s)")
    parser.add_argument(
        "--edge", choices=["sine", "one"], default="sine", help="temperature of the hot edge (%(default)s)"
    )
    parser.add_argument("--tolerance", type=float, default=1e-9, help="stop at this residual (%(default)s)")
    parser.add_argument(
        "--every", type=int, default=50, help="iterations between computations of the residual (%(default)s)"
    )
    parser.add_argument("--iterations", type=int, default=100_000, help="maximum number of iterations (%(default)s)")
    parser.add_argument(
        "--comm", choices=["psgd", "mpi4py"], default="psgd", help="whose collectives to use (%(default)s)"
    )
    parser.add_argument("--plot", metavar="FILE.png", help="rank 0 writes a picture of all rows here")
    options = parser.parse_args()
    for name, least in {"rows": 1, "columns": 1, "tolerance": 0, "every": 1, "iterations": 1}.items():
        if not (value := getattr(options, name)) >= least:
            refuse(f"argument --{name}: expected at least {least}, got {value}")
    if options.plot and not (importlib.util.find_spec("matplotlib") and Path(options.plot).parent.is_dir()):
        refuse(f"argument --plot: {options.plot} needs matplotlib (pip install matplotlib) and a folder that exists")
    return options


def main() -> None:
    options = parse()
    from mpi4py import MPI  # starts MPI, which --help does not need

    from psgd import abort_on_exception, collectives
    from psgd.collectives.mpi.split import split

    abort_on_exception()  # an error on one rank ends the job instead of leaving the others waiting
    world = MPI.COMM_WORLD
    if world.size > options.rows:
        refuse(f"argument --rows: expected at least {world.size}, one for each rank, got {options.rows}")
    ranges = split(options.rows, world.size)
    rows, middle = ranges[world.rank], options.rows // 2
    with collectives.Communicator(world) if options.comm == "psgd" else contextlib.nullcontext(world) as comm:
        field, iterations, residual = solve(comm, plate(rows, options), options)
        inner = np.ascontiguousarray(field[1:-1, 1:-1])
        mine, largest = np.full(2, -np.inf), np.empty(2)
        mine[0] = np.abs(inner - analytic(rows, options)).max()
        if middle in rows:
            mine[1] = inner[middle - rows.start, options.columns // 2]
        comm.Allreduce(mine, largest, op=MPI.MAX)
        if options.plot:
            whole = np.empty((options.rows, options.columns)) if world.rank == 0 else None
            comm.Gatherv(inner, (whole, [len(r) * options.columns for r in ranges]), root=0)
    if world.rank == 0:
        print(f"iterations          {iterations}{'' if residual <= options.tolerance else ' (the limit)'}")
        print(f"residual            {residual:.10g}")
        print(f"centre temperature  {largest[1]:.10g}")
        if options.edge == "sine":
            print(f"largest error       {largest[0]:.10g}")
        if options.plot and whole is not None:
            plot(options.plot, whole)


if __name__ == "__main__":
    main()
