"""The header that travels before or with every array, and its checks.

A header is 88 bytes, little-endian, written with `struct`: nothing that comes from another rank is unpickled.
A header whose format, shard or sender is not the expected one is refused with a ContractError.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from psgd.kernels.errors import ContractError

FORMAT = 0x50534702  # "PSG" and the version of this layout
_STRUCT = struct.Struct("<6I6q2d")
HEADER_BYTES = 128  # room on the wire; a payload that follows inline starts aligned to a cache line

INLINE_BYTES = 4 << 10  # up to here a copy costs less than a second message (two cores, 2026-11-28)


def travels_inline(nbytes: int) -> bool:
    """Whether a shard of this size rides in the header's own message."""
    return 0 < nbytes <= INLINE_BYTES


class MessageKind(IntEnum):
    """What a header announces."""

    INIT = 1  # first worker: the initial parameters follow
    PULL = 2  # other workers at the start: send me the parameters
    PUSH = 3  # a gradient follows (none if samples is 0)
    REPORT = 4  # an evaluation: values = accuracy, loss
    DONE = 5  # this worker has no more pushes
    REPLY = 16  # parameters follow
    END = 17  # final parameters follow


class Header(NamedTuple):
    """Fields of the wire header.

    Attributes:
        format: layout version, `FORMAT`.
        view: number of the membership view.
        kind: a `MessageKind`.
        worker: the worker's index, not its rank.
        shard: the server's index.
        segments: how many data messages follow (0: none, or the data is inline).
        push: number of this worker's push, from 1; in a reply, the cuts so far (`psgd.server.checkpoint_points`).
        clock: pushes of this worker before this one; in a reply, the version at the newest cut.
        version: groups applied when the parameters were sent; in a push, the version pulled.
        samples: samples behind the gradient.
        position: samples this worker has drawn so far (sampler position).
        extra: in a reply, `STOP` plus `LEAVE` plus `RELAY` times what the server wants saved
            (`psgd.checkpoint.requests.SAVE`), for the worker to ask all servers; in a push, the form of the encoded
            gradients that follow (`psgd.server.compressed_worker_transport`).
        value: loss (push), accuracy (report), worker's waiting seconds (done).
        value2: loss (report), worker's computing seconds (done); in a push, 1 where a gradient was left out, plus
            `ASK` times what the worker wants saved (`psgd.checkpoint.requests.SAVE`).
    """

    format: int
    view: int
    kind: int
    worker: int
    shard: int
    segments: int
    push: int
    clock: int
    version: int
    samples: int
    position: int
    extra: int
    value: float
    value2: float


STOP, LEAVE, RELAY = 1, 2, 4  # asks to stop; the newest cut was made to stop; a factor
ASK = 2


def asked(push: Header) -> int:
    """What a push asks to be saved: 0, `psgd.checkpoint.requests.SAVE` or `SAVE_AND_STOP`."""
    return 0 if not push.value2 >= ASK else 1 if push.value2 < 2 * ASK else 2


def left_out(push: Header) -> bool:
    """Whether the worker left its gradient out of a push."""
    return push.value2 % ASK == 1


def pack(buffer: bytearray | memoryview, header: tuple[float, ...]) -> None:
    """Writes the header's fields at the start of `buffer`."""
    _STRUCT.pack_into(buffer, 0, *header)


def unpack(buffer: bytearray | memoryview, worker: int, shard: int) -> Header:
    """Reads a header and checks that it belongs to this worker and shard, and that no count is below 0.

    Raises:
        ContractError: another format (a peer of another version, or damage), worker or shard.
    """
    fields = _STRUCT.unpack_from(buffer)
    least = fields[6] | fields[7] | fields[8] | fields[9] | fields[10]  # below 0 where one of them is
    if fields[0] != FORMAT or fields[3] != worker or fields[4] != shard or least < 0:
        raise ContractError(
            f"wire header: expected format {FORMAT:#x}, worker {worker}, shard {shard}; "
            f"got format {fields[0]:#x}, worker {fields[3]}, shard {fields[4]}: "
            "do all ranks run the same psgd version?"
        )
    return Header._make(fields)
