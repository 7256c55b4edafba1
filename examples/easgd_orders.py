"""The cost of a round of EASGD on a link: round-robin (the centre visits each worker) against all workers at once.

    mpirun -n 8 python examples/easgd_orders.py                # one rank a host; --plot rounds.png plots it

You, Buluc and Demmel (2017) made EASGD 3.7 times faster: they replaced the P messages of a round, one after the other,
by a tree. A round is one exchange of every worker with the centre. For each number of workers P, this program times a
round in three forms. Beside each it prints a prediction from t, the time of the vector on a link: P t for the
round-robin order, log2(P) t for the synchronous order over recursive doubling (a tree in which both sides send at
once), and 2 (P - 1)/P t for the synchronous order over a ring, which psgd chooses by default.
"""

import argparse
import json
import math
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import psgd

FORMS = ("round-robin", "tree", "ring")
Row = dict[str, float]


def predicted(form: str, workers: int) -> float:
    """How many times the vector crosses a link in a round, one after the other."""
    return {"round-robin": workers, "tree": math.log2(workers), "ring": 2 * (workers - 1) / workers}[form]


def choose(form: str, workers: int, folder: str) -> None:
    """Fixes the algorithm of the all-reduce with a tuning table; only rank 0's table is read."""
    algorithm = "ring" if form == "ring" else "recursive_doubling"
    entry = {"collective": "Allreduce", "ranks": workers, "nodes": workers, "limits": [[None, algorithm]]}
    table = Path(folder, "tuning.json")
    table.write_text(json.dumps({"format": 1, "entries": [entry]}))
    os.environ["PSGD_TUNING"] = str(table)


def round_s(comm: MPI.Intracomm, form: str, size: int, rounds: int) -> float:
    """Median seconds of a round on the slowest worker."""
    params, seconds = np.zeros(size, np.float32), np.zeros(rounds)
    order = "round-robin" if form == "round-robin" else "sync"
    with psgd.connect(comm, params, strategy="easgd", easgd_order=order, period=1, lr=0.1) as ps:
        for at in range(-2, rounds):  # two to warm up
            start = time.perf_counter()
            ps.step()
            seconds[at] = time.perf_counter() - start
    slowest = np.empty_like(seconds)
    comm.Allreduce(seconds, slowest, MPI.MAX)
    return float(np.median(slowest))


def link_s(comm: MPI.Intracomm, size: int, rounds: int) -> float:
    """Median seconds for the vector from rank 0 to rank 1, half of a ping-pong."""
    vector, seconds = np.zeros(size, np.float32), np.zeros(rounds)
    for at in range(-1, rounds):
        start = time.perf_counter()
        if comm.rank == 0:
            comm.Send(vector, 1)
            comm.Recv(vector, 1)
        elif comm.rank == 1:
            comm.Recv(vector, 0)
            comm.Send(vector, 0)
        seconds[at] = (time.perf_counter() - start) / 2
    return float(comm.bcast(np.median(seconds)))


def measure(comm: MPI.Intracomm, size: int, rounds: int) -> list[Row]:
    """A row for each power of two of workers."""
    rows: list[Row] = []
    link = link_s(comm, size, rounds)
    with tempfile.TemporaryDirectory() as folder:
        for workers in (2**k for k in range(1, comm.size.bit_length())):
            if workers > comm.size:
                break
            part = comm.Split(int(comm.rank >= workers))
            row: Row = {"P": workers}
            for form in FORMS:
                choose(form, workers, folder)
                if comm.rank < workers:
                    row[form] = round_s(part, form, size, rounds)
                row[f"{form}, predicted"] = predicted(form, workers) * link
                comm.Barrier()
            part.Free()
            rows.append(row)
    return rows


def show(rows: list[Row], size: int) -> None:
    """Prints milliseconds a round, measured and predicted, and the ratio of round-robin to the tree."""
    print(f"{4 * size / 2**20:.3g} MiB; ms a round, measured (predicted from one message's time)")
    print("P  " + "".join(form.rjust(20) for form in FORMS) + "  round-robin / tree (P / log2 P)")
    for row in rows:
        pairs = [(row[form], row[f"{form}, predicted"]) for form in FORMS]
        cells = "".join(f"{1e3 * mine:.2f} ({1e3 * theirs:.2f})".rjust(20) for mine, theirs in pairs)
        ratios = f"{pairs[0][0] / pairs[1][0]:.2f} ({row['P'] / math.log2(row['P']):.2f})"
        print(f"{row['P']:<3.0f}{cells}  {ratios}")


def draw(rows: list[Row], path: str) -> None:
    """Plots a round's time against the number of workers; dashed lines are predictions."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(5.5, 3.8), layout="constrained")
    workers = [row["P"] for row in rows]
    for index, form in enumerate(FORMS):
        panel.plot(workers, [1e3 * row[form] for row in rows], "o-", color=f"C{index}", label=form)
        panel.plot(workers, [1e3 * row[f"{form}, predicted"] for row in rows], "--", color=f"C{index}", alpha=0.6)
    panel.set(xlabel="workers, one per host", ylabel="ms per round (dashed: predicted)", xticks=workers, ylim=(0, None))
    panel.grid(alpha=0.3)
    panel.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=float, default=1.0, help="size of the parameters, MiB (1)")
    parser.add_argument("--rounds", type=int, default=11, help="number of rounds, whose median is reported (11)")
    parser.add_argument("--plot", metavar="FILE", help="also write a plot: .png, .pdf or .svg (needs matplotlib)")
    options = parser.parse_args()
    psgd.abort_on_exception()
    comm = MPI.COMM_WORLD
    if comm.size < 2:
        parser.error("expected 2 ranks or more, one per host: mpirun -n 4 ...")
    size = max(1, int(options.mib * 2**18))
    rows = measure(comm, size, options.rounds)
    if comm.rank == 0:
        show(rows, size)
        if options.plot:
            draw(rows, options.plot)


if __name__ == "__main__":
    main()
