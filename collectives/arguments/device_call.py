"""Device calls: what GPUs do among themselves, from the views of a caller's buffers."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.collectives.arguments.call import Call
from psgd.collectives.arguments.descriptor import fingerprint
from psgd.collectives.arguments.device_arrays import DeviceView
from psgd.collectives.arguments.operations import Operation
from psgd.collectives.arguments.view import View
from psgd.collectives.mpi.node import address_of
from psgd.kernels.device import combine

SMALLEST_BYTES = 512 * 1024
"""Of a vector for the ring: below, copies to the host and its shared memory are faster. See docs/gpu.md."""
_HALVES = ("float16", "bfloat16")


class DeviceJob:
    """What a device call works on beside its `Call`.

    Attributes:
        device: number of the GPU.
        send: the view of what this rank contributes.
        recv: the view of the result.
        result: the part of `recv` that is written.
        kind: of the elements on the way: float32 for 16-bit floats.
        halves: the kind of 16-bit floats, or empty.
        nbytes: of the whole vector.
        ring: the ring does it where GPUs are not peers; else it goes through the host.
        aliased: a reduce-scatter in place, whose result overwrites what it sends.
        on_host: makes the same call on copies in the host's memory.
        repeats: the caller wants `made`, and forgets it here: they know each other.
        made: the kernel that has done it among peers, where that can be put on a stream again.
    """

    def __init__(
        self,
        send: DeviceView,
        recv: DeviceView,
        result: slice,
        kind: str,
        halves: str,
        nbytes: int,
        on_host: Callable[[], Call],
    ) -> None:
        self.device: int = send.device or 0
        self.send, self.recv = send, recv
        self.result = result
        self.kind = kind
        self.halves = halves
        self.nbytes = nbytes
        self.ring = nbytes >= SMALLEST_BYTES
        self.aliased = False
        self.on_host = on_host
        self.repeats = False
        self.made: Any = None


def takes(send: View, recv: View, op: Operation | None) -> bool:
    """Whether GPUs do a call by themselves: both arrays on one, of a type and operation that they know."""
    if not (isinstance(send, DeviceView) and isinstance(recv, DeviceView)) or send.device != recv.device:
        return False
    if op is None:
        return True
    return op.code >= 0 and op.accepts(send.kind) and (send.kind in _HALVES or combine.knows(send.kind))


def reduction(
    verb: str,
    op: Operation,
    send: View,
    recv: View,
    result: slice,
    count: int,
    on_host: Callable[[], Call],
    counts: Sequence[int] | None = None,
) -> Call:
    """The call of an Allreduce, or, with `counts`, of a Reduce_scatter; `on_host` makes that through the host."""
    assert isinstance(send, DeviceView) and isinstance(recv, DeviceView)
    halves = send.kind if send.kind in _HALVES else ""
    call = Call(
        verb,
        kind=send.kind,
        op=op,
        send=send.memory,
        recv=recv.memory[result],
        starts=None if counts is None else [0, *itertools.accumulate(counts[:-1])],
        lengths=counts or (),
        count=count,
        shape=send.shape,
        mark=fingerprint(send.shape),
    )
    kind = "float32" if halves else send.kind
    call.job = DeviceJob(send, recv, result, kind, halves, count * send.memory.itemsize, on_host)
    if counts is not None:
        call.job.aliased = bool(np.may_share_memory(send.memory, recv.memory))
    return call


def gather(
    verb: str, send: View, recv: View, starts: list[int], counts: list[int], on_host: Callable[[], Call]
) -> Call:
    """The call of an Allgather: bytes."""
    assert isinstance(send, DeviceView) and isinstance(recv, DeviceView)
    item = recv.memory.itemsize
    call = Call(
        verb,
        kind=recv.kind,
        send=_bytes(send.memory),
        recv=_bytes(recv.memory),
        starts=[item * start for start in starts],
        lengths=[item * n for n in counts],
    )
    call.job = DeviceJob(send, recv, slice(0, recv.size), "uint8", "", recv.size * item, on_host)
    return call


def broadcast(data: View, root: int, on_host: Callable[[], Call]) -> Call:
    """The call of a Bcast: bytes. Peers do it; a ring does not."""
    assert isinstance(data, DeviceView)
    values = _bytes(data.memory)
    call = Call("Bcast", kind=data.kind, root=root, send=values, recv=values)
    call.count, call.shape, call.mark = data.size, data.shape, fingerprint(data.shape)
    call.job = DeviceJob(data, data, slice(0, data.size), "uint8", "", values.size, on_host)
    call.job.ring = False
    return call


def _bytes(memory: NDArray[Any]) -> NDArray[np.uint8]:
    return memory.view(np.uint8)


def same_place(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether two arrays begin at one address."""
    return address_of(a) == address_of(b)
