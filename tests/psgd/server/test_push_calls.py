"""How many Python functions a push passes through, from the worker's `step` until it returns.

Counted are calls of functions in psgd's files, on both ranks, for one push of `sync` with one server and one worker
whose gradient lies in shared memory. On the worker:

    Connection.step
    PushPullWorker.step
    MpiWorkerTransport.exchange      writes the header, starts all requests
    Header.check
    Waiter.flowing                   for the parameters

and on the server:

    MpiServerTransport.next
    MpiServerTransport._receive
    Header.check
    Server._take
    ClockCheck.take                  is it the worker's next push?
    Synchronous.on_push, ._complete  the decision: one entry of the log
    Server._execute
    RunMetrics.applied
    MpiServerTransport.reply         the answer's header
    Shard.apply
    Optimizer.begin, the schedule    rate and number of the step
    MpiServerTransport.fetch, .settle
    the rule's update, by_device     and then a compiled kernel
    MpiServerTransport.emit          the parameters
    RunMetrics.progress

C functions and compiled kernels are no calls here, nor is a wait and what it looks at while it lasts: that depends on
the machine.
"""

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import psgd

MOST = 24  # one of them looks at a part of the gradient, for NaN
PUSHES = 20
HOME = Path(psgd.__file__).resolve().parent
INSTALLED = (HOME / "kernels").is_dir()  # else a checkout, with the other folders beside this one


def room_of(file):
    """The one of the four folders that a file lies in, or an empty text."""
    top = HOME if INSTALLED else HOME.parent
    if not file.is_relative_to(top):
        return ""
    first = file.relative_to(top).parts[0]
    return "psgd" if INSTALLED and first not in ("kernels", "collectives", "launch") else first


class Calls:
    """Notes the calls of this process."""

    def __init__(self):
        self.names = []

    def __call__(self, frame, event, argument):
        if event != "call":
            return
        file, caller = Path(frame.f_code.co_filename), frame.f_back
        folder = room_of(file)
        compiled = folder == "kernels" and file.name != "by_device.py"
        in_wait = False
        while caller is not None and room_of(Path(caller.f_code.co_filename)) and not in_wait:
            in_wait, caller = caller.f_code.co_filename.endswith("collectives/mpi/wait.py"), caller.f_back
        waits = frame.f_code.co_name == "until" and frame.f_code.co_filename.endswith("collectives/mpi/wait.py")
        if waits:
            return
        if folder in ("kernels", "collectives", "psgd") and not compiled and not in_wait:
            self.names.append(frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name)


@pytest.mark.ranks(2)
def test_a_push_takes_few_calls(comm):
    calls, pushes = Calls(), []
    params = np.zeros(50_000, np.float32)
    try:
        sys.setprofile(calls if comm.rank == 0 else None)  # the server serves as it enters the block
        with psgd.connect(comm, params) as ps:
            assert ps.worker == 0
            assert not ps._client.transport._links[0].grads_out, "the gradient is not in shared memory"
            for _ in range(PUSHES):
                calls.names = []
                sys.setprofile(calls)
                ps.step(4, 0.5)
                sys.setprofile(None)
                pushes.append(calls.names)
    finally:
        sys.setprofile(None)
    if comm.rank == 0:
        starts = [at for at, name in enumerate(calls.names) if name.endswith("next")]
        pushes = [calls.names[a:b] for a, b in pairwise(starts[1:])]
        assert len(pushes) == PUSHES
    server, worker = comm.allgather(min(pushes, key=len))
    assert len(server) > 10 and len(worker) > 3, "the count sees nothing"
    assert len(server) + len(worker) <= MOST, " ".join([*server, *worker])
