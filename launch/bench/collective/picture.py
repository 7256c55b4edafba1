"""A picture of bus bandwidth against size, a line for each contender."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path

from psgd.kernels.notice import counted
from psgd.launch.bench.collective.table import (
    BY_HAND,
    COPIES,
    GLOO,
    MPI_IN_PLACE,
    MPI_NAME,
    NCCL,
    PRIVATE,
    REGISTERED,
    REGISTERED_IN_PLACE,
    STAGED,
    TORCH,
    Row,
)
from psgd.launch.bench.problem import BenchOptions
from psgd.launch.bench.sizes import format_size
from psgd.launch.output import picture

_LOOKS = {  # colours that the colour-blind tell apart; psgd solid, peers dashed
    PRIVATE: ("#0072b2", "-", "o"),
    REGISTERED: ("#009e73", "-", "s"),
    REGISTERED_IN_PLACE: ("#56b4e9", "-", "^"),
    MPI_NAME: ("#d55e00", "--", "D"),
    MPI_IN_PLACE: ("#e69f00", "--", "v"),
    GLOO: ("#555555", ":", "x"),
    STAGED: ("#009e73", "-", "s"),
    NCCL: ("#d55e00", "--", "D"),
    TORCH: ("#e69f00", "--", "v"),
    BY_HAND: ("#555555", ":", "x"),
    COPIES: ("#cc79a7", ":", "+"),
}
_NAMES = {"allreduce": "Allreduce", "reducescatter": "Reduce-scatter", "allgather": "All-gather", "bcast": "Broadcast"}


def draw(rows: Sequence[Row], options: BenchOptions, target: Path) -> None:
    """Writes the picture. A contender without a bandwidth, as a sum on one rank, has no line.

    Args:
        rows: at least one; sizes in any order.
        options: what was measured.
        target: the file; its suffix gives the format.

    Raises:
        UsageError: it cannot be written.
    """
    rows = sorted(rows, key=lambda row: row.nbytes)
    figure = picture.figure(8, 5)
    from matplotlib.ticker import NullLocator

    axis = figure.subplots()
    for name, (colour, style, marker) in _LOOKS.items():
        points = [(row.nbytes, row.bandwidth(options.collective, name)) for row in rows if name in row.seconds]
        points = [(nbytes, bandwidth) for nbytes, bandwidth in points if bandwidth > 0]
        if points:
            axis.plot(
                [nbytes for nbytes, _ in points],
                [bandwidth for _, bandwidth in points],
                color=colour,
                linestyle=style,
                marker=marker,
                markersize=5,
                label=name,
            )
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    shown = rows if len(rows) < 9 else rows[::2]
    axis.set_xticks([row.nbytes for row in shown], [format_size(row.nbytes) for row in shown])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set(xlabel="size of the whole vector", ylabel="bus bandwidth (GB/s)")
    how = f"{options.dtype}, {options.op}" if options.reduces else options.dtype
    ranks = counted(rows[0].ranks, "rank")
    title = f"{_NAMES[options.collective]} ({how}), {ranks}, {rows[0].mpi}, {date.today().isoformat()}"
    axis.set_title(title, fontsize="medium")
    axis.grid(alpha=0.3, which="both")
    if axis.get_lines():
        axis.legend(fontsize="small")
    picture.save(figure, "--plot", target)
