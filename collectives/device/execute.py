"""The steps of a device call: agree, wait for the caller's stream, widen, go round the ring, narrow."""

from collections.abc import Generator
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from psgd.collectives.arguments.call import Call
from psgd.collectives.arguments.device_arrays import phantom
from psgd.collectives.arguments.device_call import DeviceJob, same_place
from psgd.collectives.device.context import DeviceContext
from psgd.collectives.device.cuda import Cuda, opens
from psgd.collectives.device.ring import Ring
from psgd.collectives.mpi.wait import Steps, Test
from psgd.kernels.device import halves
from psgd.kernels.device.events import over


def run(context: DeviceContext, call: Call) -> Generator[Test, None, str]:
    """Carries out a call on which all ranks agree. Returns the name of the transport.

    Raises:
        PeerLostError: a rank ended or left the call in the middle (the waits raise it).
    """
    job: DeviceJob = call.job
    gpu = context.gpu(job.device)
    yield from gpu.within(_steps(context, call, job, gpu))
    job.recv.write_back()
    return context.transport(gpu).name


def _steps(context: DeviceContext, call: Call, job: DeviceJob, gpu: Cuda) -> Steps:
    for each in (job.send,) if job.send is job.recv else (job.send, job.recv):
        if not over(each.ready):
            yield _Over(each.ready)
    send, recv = call.send, call.recv
    assert send is not None and recv is not None
    if job.halves:
        wide = _Wide(job, gpu, send, recv)
        send, recv = wide.send, wide.recv
        yield gpu.until(gpu.marked())
    transport = context.transport(gpu)
    result, closed = recv, transport.opens and not (opens(send) and (same_place(send, recv) or opens(recv)))
    if closed:  # MPI cannot open it in another process: the ring works on copies
        copies = [gpu.scratch(f"copy {i}", each.nbytes).view(each.dtype) for i, each in enumerate((send, recv))]
        yield gpu.until(gpu.copy(copies[0], send))
        yield gpu.until(gpu.copy(copies[1], recv))
        send, recv = copies[0], copies[0] if same_place(send, recv) and send.size == recv.size else copies[1]
    ring = Ring(gpu, transport, context.rank, context.size)
    if call.verb == "Allreduce":
        assert call.op is not None
        yield from ring.allreduce(send, recv, call.op)
    elif call.op is not None:
        yield from _scatter(context, call, ring, gpu, send, recv)
    else:
        parts = call.ranges(context.size)
        own = parts[context.rank]
        if len(own) and not same_place(recv[own.start : own.stop], send):
            yield gpu.until(gpu.copy(recv[own.start : own.stop], send))
        yield from ring.allgather(recv, parts)
    if closed:
        yield gpu.until(gpu.copy(result, recv))
    if job.halves:
        wide.put_back()
        yield gpu.until(gpu.marked())


def _scatter(
    context: DeviceContext, call: Call, ring: Ring, gpu: Cuda, send: NDArray[Any], recv: NDArray[Any]
) -> Steps:
    """In place, this rank's result would overwrite what it still has to send: it waits in memory of its own."""
    assert call.op is not None
    into = recv
    if np.may_share_memory(send, recv):
        into = gpu.scratch("result", recv.nbytes).view(recv.dtype)
    yield from ring.reduce_scatter(send, into, call.ranges(context.size), call.op)
    if into is not recv:
        yield gpu.until(gpu.copy(recv, into))


class _Wide:
    """float32 copies of 16-bit floats: sums of them are made in float32."""

    def __init__(self, job: DeviceJob, gpu: Cuda, send: NDArray[Any], recv: NDArray[Any]) -> None:
        self._job, self._gpu = job, gpu
        with gpu.summing():
            self._send = halves.widen(job.send.work, job.halves)
            self._recv = self._send if send.size == recv.size else cupy.empty(recv.size, np.float32)
        self.send, self.recv = _phantom(self._send), _phantom(self._recv)

    def put_back(self) -> None:
        """Starts to round the result into the caller's memory."""
        with self._gpu.summing():
            halves.narrow(self._job.recv.work[self._job.result], self._recv, self._job.halves)


def _phantom(array: Any) -> NDArray[Any]:
    return phantom(array.data.ptr, array.size, array.dtype, array)


class _Over:
    """True once an event is over."""

    def __init__(self, event: Any) -> None:
        self._event = event

    def __call__(self) -> bool:
        return over(self._event)
