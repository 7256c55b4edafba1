"""What `psgd bench allreduce` and its like print: a table for people, JSON for programs, Markdown for documents."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psgd.launch.bench import markdown
from psgd.launch.bench.problem import BenchOptions, bus_factor
from psgd.launch.bench.sizes import format_seconds, format_size
from psgd.launch.bench.stats import ratio

PRIVATE, REGISTERED, REGISTERED_IN_PLACE = "psgd", "psgd registered", "psgd registered in place"
MPI_NAME, MPI_IN_PLACE, GLOO = "MPI", "MPI in place", "Gloo"
MPI_BEST = "MPI at its best"
PERSISTENT, MPI_PERSISTENT = "psgd persistent", "MPI persistent"  # private buffers, bound once
GRAPH, NCCL_GRAPH = "psgd in a graph", "NCCL in a graph"
STAGED, NCCL, TORCH, BY_HAND, COPIES = "psgd staged", "NCCL", "PyTorch", "MPI and copies", "pinned copies"
OURS = (PRIVATE, REGISTERED, REGISTERED_IN_PLACE)
_VARIANTS = (*OURS, STAGED)
_TIMES = {  # the two lines of the head
    PRIVATE: ("psgd", "private"),
    PERSISTENT: ("psgd", "persist"),
    REGISTERED: ("psgd", "regist."),
    REGISTERED_IN_PLACE: ("psgd", "inplace"),
    MPI_NAME: ("MPI", "default"),
    MPI_BEST: ("MPI", "best"),
    MPI_PERSISTENT: ("MPI", "persist"),
    MPI_IN_PLACE: ("MPI", "inplace"),
    GLOO: ("Gloo", ""),
    GRAPH: ("psgd", "graph"),
    STAGED: ("psgd", "staged"),
    NCCL: ("NCCL", ""),
    NCCL_GRAPH: ("NCCL", "graph"),
    TORCH: ("PyTorch", "NCCL"),
    BY_HAND: ("MPI and", "copies"),
    COPIES: ("pinned", "copies"),
}
_RATIOS = {
    (MPI_NAME, PRIVATE): ("MPI/", "priv"),
    (MPI_BEST, PRIVATE): ("best/", "priv"),
    (MPI_NAME, REGISTERED): ("MPI/", "reg"),
    (MPI_IN_PLACE, REGISTERED_IN_PLACE): ("MPI/", "inpl"),
    (GLOO, PRIVATE): ("Gloo/", "priv"),
    (NCCL, PRIVATE): ("NCCL/", "psgd"),
    (NCCL_GRAPH, GRAPH): ("NCCL/", "graph"),
    (COPIES, STAGED): ("copy/", "stag"),
}
_SPARED = (  # ratios that are left out, in turn, where a line is too long
    *((MPI_NAME, REGISTERED), (GLOO, PRIVATE)),
    *((MPI_NAME, PRIVATE), (MPI_IN_PLACE, REGISTERED_IN_PLACE)),
)
_NAMES_WIDTH = 18
_LONGEST_NAMES = "recursive_doubling, .."
_WIDTH = 120


@dataclass(frozen=True)
class Row:
    """One size's result.

    Attributes:
        nbytes: of the whole vector.
        ranks: how many.
        repeats: timed rounds.
        mpi: vendor and version.
        seconds: by contender, the median over rounds of the slowest rank's time.
        used: psgd's algorithm and transport, by contender.
        setting: of MPI, by which it is at its best; "" where that was not looked for.
    """

    nbytes: int
    ranks: int
    repeats: int
    mpi: str
    seconds: Mapping[str, float]
    used: Mapping[str, tuple[str, str]]
    setting: str = ""

    def bandwidth(self, collective: str, name: str) -> float:
        """Bus bandwidth of a contender in GB/s (10^9 bytes)."""
        return bus_factor(collective, self.ranks) * self.nbytes / self.seconds[name] / 1e9


def objects(row: Row, options: BenchOptions) -> list[dict[str, Any]]:
    """A JSON object for each of psgd's variants."""
    peers = {
        "mpi": MPI_NAME,
        "mpi_best": MPI_BEST,
        "mpi_in_place": MPI_IN_PLACE,
        "mpi_persistent": MPI_PERSISTENT,
        "gloo": GLOO,
        "nccl": NCCL,
        "nccl_graph": NCCL_GRAPH,
        "torch": TORCH,
        "copies": COPIES,
    }
    return [
        {
            "collective": options.collective,
            "algorithm": row.used[name][0],
            "transport": row.used[name][1],
            "ranks": row.ranks,
            "nbytes": row.nbytes,
            "dtype": options.dtype,
            "seconds": row.seconds[name],
            "persistent": row.seconds.get(PERSISTENT) if name == PRIVATE else None,
            "graph": row.seconds.get(GRAPH) if name == PRIVATE else None,
            "busbw_gbs": row.bandwidth(options.collective, name),
            "device": options.device,
            "buffers": "private" if name in (PRIVATE, STAGED) else "registered",
            "against": {key: row.seconds.get(peer) for key, peer in peers.items()},
            "mpi_best_setting": row.setting or None,
            "verified": True,
            "mpi": row.mpi,
            "in_place": name == REGISTERED_IN_PLACE or options.device == "cuda",
        }
        for name in _VARIANTS
        if name in row.seconds
    ]


class Table:
    """Lines of equal columns, those that the first row has. At most 120 characters but for names of odd sizes."""

    _narrow = True  # lines have a limit

    def __init__(self, options: BenchOptions, first: Row, sizes: Sequence[int]) -> None:
        self._collective = options.collective
        self._times = [name for name in _TIMES if name in first.seconds]
        self._ratios = [pair for pair in _RATIOS if set(pair) <= set(first.seconds)]
        self._size = max(8, *(len(format_size(nbytes)) for nbytes in sizes))
        for spared in _SPARED if self._narrow else ():
            cells = [""] * (len(self._times) + len(self._ratios))
            if len(self._line("", cells, "", _LONGEST_NAMES)) > _WIDTH:
                self._ratios = [pair for pair in self._ratios if pair != spared]

    def head(self) -> str:
        """Two lines."""
        tops = [_TIMES[name] for name in self._times] + [_RATIOS[pair] for pair in self._ratios]
        first = self._line("", [top for top, _ in tops], "bus", "")
        return f"{first}\n{self._line('size', [below for _, below in tops], 'GB/s', 'algorithm')}"

    def line(self, row: Row) -> str:
        """A row. GB/s is psgd's, with private buffers where they were measured."""
        cells = [format_seconds(row.seconds.get(name)) for name in self._times]
        cells += self._faster(row)
        ours = [name for name in _VARIANTS if name in row.seconds]
        used = list(dict.fromkeys(row.used[name][0] for name in ours))
        names = ", ".join(used)
        names = names if len(names) <= _NAMES_WIDTH else f"{used[0]}, .."
        bandwidth = f"{row.bandwidth(self._collective, ours[0]):.3g}"
        return self._line(format_size(row.nbytes), cells, bandwidth, names)

    def _faster(self, row: Row) -> list[str]:
        """The ratios, as text."""
        found = [ratio(row.seconds.get(peer), row.seconds.get(name)) for peer, name in self._ratios]
        return ["-" if faster is None else f"{faster:.2f}" if faster < 100 else f"{faster:.0f}" for faster in found]

    def foot(self, rows: Sequence[Row]) -> str:
        """By which setting MPI was at its best, size by size; "" where that was not looked for."""
        found = [f"{row.setting} ({format_size(row.nbytes)})" for row in rows if row.setting]
        return textwrap.fill(f"MPI at its best: {', '.join(found)}", _WIDTH) if found else ""

    def _line(self, size: str, cells: Sequence[str], bandwidth: str, names: str) -> str:
        widths = [7] * len(self._times) + [5] * len(self._ratios)
        middle = " ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        return f"{size.rjust(self._size)} {middle} {bandwidth.rjust(8)}  {names}".rstrip()


class MarkdownTable(Table):
    """The same as rows of a Markdown table, with the setting of MPI at its best behind its time."""

    _narrow = False

    def head(self) -> str:
        times = [" ".join(filter(None, _TIMES[name])) for name in self._times]
        ratios = ["".join(_RATIOS[pair]) for pair in self._ratios]
        return markdown.head(["ranks", "bytes", *times, *ratios])

    def line(self, row: Row) -> str:
        times = [format_seconds(row.seconds.get(name)) for name in self._times]
        if MPI_BEST in self._times and row.setting:
            times[self._times.index(MPI_BEST)] += f" ({row.setting})"
        return markdown.line([str(row.ranks), format_size(row.nbytes), *times, *self._faster(row)])

    def foot(self, rows: Sequence[Row]) -> str:
        return ""
