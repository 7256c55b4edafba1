"""Whether each push is the next one of its worker: none is applied twice, skipped, or computed on other parameters.

A worker has one push under way, so its next one is known: the number after the last, on the version that its answer
had, and as many samples drawn as are behind its gradient.
"""

from collections.abc import Sequence

from psgd.kernels.errors import ContractError
from psgd.server.wire import Header


class ClockCheck:
    """One server's record of all workers.

    Args:
        workers: how many there are.
        server: this one's index, for messages.

    Attributes:
        versions: the one that each worker was answered last; the server writes them.
    """

    def __init__(self, workers: int, server: int) -> None:
        self.versions = [0] * workers
        self._pushes, self._drawn = [0] * workers, [0] * workers
        self._server = server

    def restore(self, pushes: Sequence[int], drawn: Sequence[int]) -> None:
        """Continues from a checkpoint: each worker's pushes and the samples that it had drawn."""
        self._pushes, self._drawn = list(pushes), list(drawn)

    def take(self, header: Header) -> None:
        """Notes a push.

        Raises:
            ContractError: it is not the next one of its worker.
        """
        worker, push, version, drawn = header.worker, header.push, header.version, header.position
        left_out = drawn - self._drawn[worker] - header.samples
        next_one = push == self._pushes[worker] + 1 and version == self.versions[worker]
        if not next_one or left_out < 0 or (left_out and not header.dropped):
            raise ContractError(
                f"server {self._server}: worker {worker} sent push {push} on version {version} with {header.samples} "
                f"samples, {drawn} drawn in all; expected push {self._pushes[worker] + 1} on version "
                f"{self.versions[worker]} after {self._drawn[worker]} drawn: a push was repeated, lost or changed"
            )
        self._pushes[worker], self._drawn[worker] = push, drawn

    @property
    def drawn(self) -> list[int]:
        """Samples that each worker had drawn at its newest push."""
        return list(self._drawn)

    def take_back(self, header: Header) -> None:
        """A push that was noted is not going to be applied, as its worker is dead."""
        self._pushes[header.worker] -= 1
        self._drawn[header.worker] -= header.samples

    def check(self, header: Header) -> None:
        """Compares what a worker says of its last push: at its end, and where it resumes.

        Raises:
            ContractError: it is not the last one that came.
        """
        pushes = self._pushes[header.worker]
        if header.push != pushes:
            raise ContractError(
                f"server {self._server}: worker {header.worker} says that it has pushed {header.push} times, "
                f"expected {pushes}: a push was repeated or lost"
            )
