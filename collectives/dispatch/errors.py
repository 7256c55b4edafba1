"""What ranks tell each other apart from data when a call over messages goes wrong: a small fixed report to all."""

import time

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.dispatch import contract
from psgd.collectives.shm import layout
from psgd.collectives.mpi.tags import Tag
from psgd.collectives.mpi.agreement import TEXT_BYTES, packed, unpacked
from psgd.kernels.errors import AgreedContractError, Error, PeerLostError

FAILED, WAITING, LEFT = 1, 2, 3
_PATIENCE_S = 5.0
_REPORT = np.dtype([("kind", "i8"), ("line", "i8", layout.LINE_WORDS), ("text", "u1", TEXT_BYTES)])


class Control:
    """Reports of one communicator. All methods but `settle` return at once."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._status = MPI.Status()
        self._sending: list[tuple[MPI.Request, NDArray[np.uint8]]] = []
        self._failures: dict[int, tuple[NDArray[np.int64], str]] = {}
        self._waiting: dict[int, int] = {}
        self._left: dict[int, str] = {}

    def poll(self) -> bool:
        """Takes in what has come, which also makes MPI progress. True once some rank has failed or left."""
        status = self._status
        while (message := self._comm.Improbe(MPI.ANY_SOURCE, Tag.CONTROL, status)) is not None:
            data = np.zeros(_REPORT.itemsize, np.uint8)
            message.Recv(data)
            report = data.view(_REPORT)[0]
            if report["kind"] == FAILED:
                self._failures[status.source] = (report["line"].copy(), unpacked(report["text"]))
            elif report["kind"] == LEFT:
                self._left[status.source] = unpacked(report["text"])
            else:
                self._waiting[status.source] = int(report["line"][layout.CALL])
        return bool(self._failures or self._left)

    def say(self, kind: int, line: NDArray[np.int64], text: str = "") -> None:
        """Starts to send a report to all other ranks; where they are very many, to the first ones while waiting."""
        data = np.zeros(_REPORT.itemsize, np.uint8)
        report = data.view(_REPORT)
        report["kind"] = kind
        report["line"] = line
        report["text"] = packed(text)
        peers = self._comm.size if kind != WAITING else min(64, self._comm.size)
        for rank in range(peers):
            if rank != self._comm.rank:
                self._sending.append((self._comm.Isend(data, rank, Tag.CONTROL), data))

    def waiting(self, call: int) -> list[int]:
        """The other ranks that have said that they wait in a call."""
        self.poll()
        return [rank for rank, theirs in self._waiting.items() if theirs == call]

    def settle(self, line: NDArray[np.int64], text: str) -> Error:
        """Tells all ranks that the call failed here, hears what each of them was doing, and makes the error.

        Blocks until all ranks have reported, 5 s at most: a rank in no call reports nothing.

        Args:
            line: of this rank's call.
            text: what is wrong with its own arguments; empty where nothing is.
        """
        if self._left:
            return self._departed(line)
        self.say(FAILED, line, text)
        self._failures[self._comm.rank] = (line.copy(), text)
        limit = time.monotonic() + _PATIENCE_S
        while self.poll() and len(self._failures) < self._comm.size and not self._left and time.monotonic() < limit:
            time.sleep(1e-4)
        if self._left:
            return self._departed(line)
        ranks = sorted(self._failures)
        lines = [self._failures[rank][0] for rank in ranks]
        texts = [self._failures[rank][1] for rank in ranks]
        if not any(texts) and all(contract.agree(lines[0], each) for each in lines):
            return AgreedContractError(
                f"collective call {contract.describe(line)}: {contract.name_ranks(ranks)} got a message of another call"
            )
        return contract.judge(ranks, lines, texts)

    def _departed(self, line: NDArray[np.int64]) -> Error:
        said = "; ".join(f"rank {rank} left a call in the middle: {text}" for rank, text in sorted(self._left.items()))
        return PeerLostError(f"{contract.describe(line)}: {said}")
