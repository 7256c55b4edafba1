"""The header that travels before or with every array, and its checks.

A header is a C structure that lies in the message's own memory, little-endian: to write a field is to write the
message, and to read one reads it. Nothing is packed, unpacked or allocated for a message, and nothing that comes from
another rank is unpickled. A header whose format, shard or sender is not the expected one is refused with a
ContractError.
"""

from collections.abc import Sequence
from ctypes import LittleEndianStructure, c_bool, c_double, c_int64, c_uint8, c_uint32
from enum import IntEnum
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint.requests import SAVE_AND_STOP
from psgd.kernels.errors import ContractError

FORMAT = 0x50534704  # "PSG" and the version of this layout
HEADER_BYTES = 128  # room on the wire; a payload that follows inline starts aligned to a cache line

INLINE_BYTES = 4 << 10  # up to here a copy costs less than a second message (two cores, 2026-11-28)

WHOLE, NOTHING = 0, -1
"""Values of `Header.payload_bytes` beside a number of bytes: the whole vector follows; nothing does."""


def travels_inline(nbytes: int) -> bool:
    """Whether a shard of this size rides in the header's own message."""
    return 0 < nbytes <= INLINE_BYTES


def settings_bytes(count: int) -> int:
    """Room behind a push's header for so many float64 numbers; a payload that follows stays aligned."""
    return -(-8 * count // 64) * 64


class MessageKind(IntEnum):
    """What a header announces."""

    INIT = 1  # first worker: the initial parameters follow
    PULL = 2  # other workers at the start: send me the parameters
    PUSH = 3  # a gradient follows (none if samples is 0)
    REPORT = 4  # an evaluation: accuracy and loss
    DONE = 5  # this worker has no more pushes: its waited_s and computed_s
    REPEAT = 6  # send the parameters once more: a server died while it sent its part
    BYE = 7  # the final parameters are here as a whole, and nobody need stay for this worker
    REPLY = 16  # parameters follow
    END = 17  # final parameters follow
    AGAIN = 18  # a server has died, and others hold its part: send that again, to those


class Header(LittleEndianStructure):
    """Fields of the wire header: those that its kind needs have a meaning, others may hold older values.

    `Header.inside(message)` is the header of a message, where it lies; `Header(kind=..., ...)` is one of its own.
    """

    format: int  # layout version, `FORMAT`
    view: int  # number of the membership view
    kind: int  # a `MessageKind`
    worker: int  # the worker's index, not its rank
    shard: int  # the server's index
    checkpoint_request: int  # what the sender wants saved (`psgd.checkpoint.requests.SAVE`); a worker asks all servers
    stop: bool  # in a reply: asks to stop
    leaving: bool  # in a reply: the newest checkpoint was made to stop
    dropped: bool  # in a push: the worker left its gradient out
    push: int  # number of this worker's newest push, from 1
    version: int  # groups applied when the parameters were sent; in a push, the version pulled
    samples: int  # samples behind the gradient
    position: int  # samples that this worker has drawn so far
    checkpoints: int  # in a reply: how many there were (`psgd.server.checkpoint_points`)
    checkpoint_version: int  # in a reply: the version at the newest of them
    lost_servers: int  # bit s: server s is dead, as far as the sender knows
    payload_bytes: int  # in a push: of the encoded gradient that follows, or `WHOLE` or `NOTHING`
    loss: float  # mean training loss (push), or that of the evaluation (report)
    accuracy: float  # of the evaluation
    waited_s: float  # a worker's seconds in `step`, at its end
    computed_s: float  # and its others

    _fields_: ClassVar[Sequence[Any]] = [
        *((name, c_uint32) for name in ("format", "view", "kind", "worker", "shard")),
        ("checkpoint_request", c_uint8),
        *((name, c_bool) for name in ("stop", "leaving", "dropped")),
        *((name, c_int64) for name in ("push", "version", "samples", "position", "checkpoints", "checkpoint_version")),
        *((name, c_int64) for name in ("lost_servers", "payload_bytes")),
        *((name, c_double) for name in ("loss", "accuracy", "waited_s", "computed_s")),
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(format=FORMAT, **fields)

    @classmethod
    def inside(cls, message: NDArray[np.uint8]) -> "Header":
        """The header at the start of a message's memory, with `format` filled in."""
        header = cls.from_buffer(message.data)
        header.format = FORMAT
        return header

    def check(self, worker: int, shard: int) -> None:
        """Checks that a received header belongs to this worker and shard, and that no count is below 0.

        Raises:
            ContractError: another format (a peer of another version, or damage), worker or shard.
        """
        signs = self.push | self.version | self.samples | self.position | self.checkpoints | self.checkpoint_version
        if (
            self.format != FORMAT
            or self.worker != worker
            or self.shard != shard
            or signs < 0  # the sign bit of one of them is set
            or self.checkpoint_request > SAVE_AND_STOP
        ):
            raise ContractError(
                f"wire header: expected format {FORMAT:#x}, worker {worker}, shard {shard}; "
                f"got format {self.format:#x}, worker {self.worker}, shard {self.shard}: "
                "do all ranks run the same psgd version?"
            )
