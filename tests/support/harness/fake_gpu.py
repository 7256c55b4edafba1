"""A GPU of NumPy arrays for pipelines: memory that processes share, and graphs that repeat what they have recorded.

A graph uses the memory that it was recorded with, and tells Python nothing when it runs. So one here runs its function
with the state that layers and contexts had when it was recorded, and puts theirs back.
"""

import contextlib
import ctypes
import json
from dataclasses import is_dataclass

import numpy as np

from psgd.collectives.mpi import shared_memory
from psgd.collectives.mpi.node import address_of
from psgd.kernels.layers.loss import softmax_cross_entropy


def fake_graph(function, note, put_back, launched):
    """What starts a graph of what a function starts: it runs with what Python knew when it was recorded.

    Args:
        function: is recorded.
        note: returns what Python knows.
        put_back: takes that.
        launched: is called each time the graph runs.
    """
    then, ran = note(), [False]
    function()

    def launch():
        launched()
        if not ran[0]:  # it ran when it was recorded: here that cannot be had without the other
            ran[0] = True
            return
        now = note()
        put_back(then)
        function()
        put_back(now)

    return launch


class FakeGpu:
    """What `psgd.parallel.stages.gpu.Gpu` is, at once and on the host.

    Attributes:
        stages: `CapturedStage`s whose graphs are to be true to what they have recorded.
        modules: PyTorch's, whose parameters and gradients graphs find where they were when they were recorded.
        recorded: how many graphs there are.
        launched: how often graphs ran.
        reaches: other processes' memory can be mapped.
    """

    xp = np
    captures = True

    def __init__(self, reaches=True):
        self.side = contextlib.nullcontext()
        self.stages, self.modules, self.launched, self.reaches, self.log = [], [], 0, reaches, []
        self.recorded = 0
        self._kept = {}

    def allocate(self, nbytes):
        own = shared_memory.SharedArray(max(1, nbytes), np.uint8)
        self._kept[address_of(own.array)] = own
        return address_of(own.array), json.dumps([own.address(), max(1, nbytes)]).encode().hex()

    def reach(self, handle):
        address, nbytes = json.loads(bytes.fromhex(handle))
        there = shared_memory.attach(address, nbytes, np.uint8) if self.reaches else None
        if there is None:
            return None
        self._kept[address_of(there)] = there
        return address_of(there)

    def unmap(self, address):
        del self._kept[address]

    free = unmap

    def settle(self):
        pass

    def array(self, address, shape, dtype):
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        memory = (ctypes.c_uint8 * count).from_address(address)
        return np.frombuffer(memory, dtype).reshape(shape)

    def address(self, array):
        return address_of(array)

    def event(self):
        return [0], "event"

    def reach_event(self, handle):
        return [handle]

    def record(self, event):
        self.log.append(("record", id(event)))

    def wait(self, event):
        self.log.append(("wait", id(event)))

    def passed(self, event):
        return True

    def copy(self, into, source):
        into.reshape(-1)[...] = source.reshape(-1)

    def staging(self, shape, dtype):
        return np.empty(tuple(shape), dtype)

    def download(self, into, source):
        into[...] = source

    def losses(self, most):
        return FakeLosses(most)

    def launcher(self, function):
        self.recorded += 1
        return fake_graph(function, lambda: (self._state(), self._places()), self._put_back, self._count)

    def _count(self):
        self.launched += 1

    def _put_back(self, noted):
        state, places = noted
        _restore(state)
        _put(places)

    def _places(self):
        """The memory of all parameters and gradients of modules."""
        return [(p, p.data, p.grad) for module in self.modules for p in module.parameters()]

    def _state(self):
        """What Python knows, of all stages, contexts and layers."""
        found = []
        for stage in self.stages:
            _note(stage._stage, found)
            for ctx in stage._fixed:
                _note(ctx, found)
                for state in ctx.states:
                    _walk(state, found)
        return found


def _note(thing, found):
    found.append((thing, dict(vars(thing))))


def _walk(state, found):
    if isinstance(state, list | tuple):
        for each in state:
            _walk(each, found)
    elif is_dataclass(state) and not isinstance(state, type) and hasattr(state, "__dict__"):
        _note(state, found)
        for each in vars(state).values():
            _walk(each, found)


def _restore(found):
    for thing, values in found:
        vars(thing).clear()
        vars(thing).update(values)


def _put(places):
    for p, data, grad in places:
        if p.data_ptr() != data.data_ptr():
            p.data = data
        p.grad = grad


class FakeLosses:
    """Losses are there at the second look only; who reads one earlier gets NaN."""

    def __init__(self, most):
        self._host, self._steps = np.full(most, np.nan), np.zeros(1, np.int64)
        self._coming, self._looks = {}, 0

    def begin(self):
        self._steps.fill(0)
        self._host.fill(np.nan)

    def start(self, logits, labels, scale):
        loss, _ = softmax_cross_entropy(logits, labels, scale)
        self._coming[int(self._steps[0]) % len(self._host)] = loss / round(1 / scale)
        self._steps += 1
        return 0.0, 0

    def mark(self):
        self._looks = 0

    def done(self):
        self._looks += 1
        if self._looks < 2:
            return False
        for place, loss in self._coming.items():
            self._host[place] = loss
        self._coming.clear()
        return True

    def read(self, place):
        return self._host[place]
