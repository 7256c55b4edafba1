"""What ranks must agree on: steps that may fail on one of them, and the error texts that all of them raise then.

Texts have a fixed size in bytes, so that ranks can exchange them without first exchanging their lengths.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.kernels.errors import AgreedUsageError, Error, UsageError

Made = TypeVar("Made")
TEXT_BYTES = 1024
_FINE, _USAGE, _MEMORY, _OTHER = range(4)


class Mismatch(Exception):
    """A peer's call does not agree with this rank's.

    Args:
        text: what is wrong with this rank's own arguments; empty where nothing is.
        call: the number of the peer's call, where it is known; this rank may be done with its own of that number.
        peer: its rank and the descriptor of its call, where both came with a message.
        crossed: it is in a call of the communicator's other lane: both lanes have failed.
        mine: the descriptor of this rank's call of the other lane that does not agree, where it is that one.
    """

    def __init__(
        self,
        text: str = "",
        call: int = 0,
        peer: tuple[int, NDArray[np.int64]] | None = None,
        crossed: bool = False,
        mine: NDArray[np.int64] | None = None,
    ) -> None:
        super().__init__(text)
        self.call, self.peer, self.crossed, self.mine = call, peer, crossed, mine


def together(comm: MPI.Intracomm, what: str, make: Callable[[], Made]) -> Made:
    """Calls `make`, which must not communicate, on every rank. Collective, blocks.

    Args:
        comm: the ranks.
        what: is made, for errors other than a UsageError.
        make: called once on each rank.

    Returns:
        What `make` returned.

    Raises:
        AgreedUsageError: it raised a UsageError on some rank; on all ranks, as are the other two.
        MemoryError: some rank had no memory.
        Error: it raised anything else.
    """
    kind, text, cause = _FINE, "", None
    try:
        made = make()
    except Exception as error:
        kind = _USAGE if isinstance(error, UsageError) else _MEMORY if isinstance(error, MemoryError) else _OTHER
        text, cause = str(error) if kind == _USAGE else f"{what}: {error!r}", error
    worst = np.array([kind], np.int64)
    comm.Allreduce(MPI.IN_PLACE, worst, MPI.MAX)
    if worst[0] == _FINE:
        return made
    texts = np.empty((comm.size, TEXT_BYTES), np.uint8)
    comm.Allgather(packed(text), texts)
    joined = join_texts([unpacked(each) for each in texts], range(comm.size))
    raise {_USAGE: AgreedUsageError, _MEMORY: MemoryError, _OTHER: Error}[int(worst[0])](joined) from cause


def packed(text: str) -> NDArray[np.uint8]:
    """TEXT_BYTES bytes with the text, or as much of it as fits."""
    raw = text.encode()[:TEXT_BYTES]
    data = np.zeros(TEXT_BYTES, np.uint8)
    data[: len(raw)] = np.frombuffer(raw, np.uint8)
    return data


def unpacked(raw: NDArray[np.uint8]) -> str:
    """The text in them."""
    return raw.tobytes().rstrip(b"\0").decode(errors="replace")


def join_texts(texts: Sequence[str], ranks: Sequence[int]) -> str:
    """One text of what ranks report, some of which may report nothing. Names the ranks unless all report the same."""
    groups = group_by_text([(rank, text) for rank, text in zip(ranks, texts, strict=True) if text])
    if len(groups) == 1 and all(texts):
        return groups[0][1]
    return "; ".join(f"{names}: {text}" for names, text in groups)


def group_by_text(texts: Sequence[tuple[int, str]]) -> list[tuple[str, str]]:
    """The names of the ranks with the same text, and that text, in the order of their first ranks."""
    groups: dict[str, list[int]] = {}
    for rank, text in texts:
        groups.setdefault(text, []).append(rank)
    return [(name_ranks(ranks), text) for text, ranks in groups.items()]


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, or `ranks 0-2, 5`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join("-".join(map(str, run)) for run in runs)
