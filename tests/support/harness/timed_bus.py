"""A GPU, a bus and threads that update, in time that is only counted: how long steps take if parts take so long.

Each stream is busy until a time. Starting work costs the host nothing; waiting moves its clock on.
"""

import heapq
from dataclasses import replace

import numpy as np

from psgd.nn.gates.gated import Gated


class TimedMoment:
    def __init__(self, bus, time):
        self.bus, self.time = bus, time

    def passed(self):
        return self.time <= self.bus.now

    def wait(self):
        self.bus.now = max(self.bus.now, self.time)


class TimedBus:
    """Implements `psgd.backend.offload.bus.Bus`.

    Args:
        copy: time for an element, one way.
        forward: time for a layer; backward takes twice that.

    Attributes:
        now: the host's clock.
        busy: work of each stream, added up.
    """

    launcher = None

    def __init__(self, copy, forward):
        self.copy, self.forward = copy, forward
        self.now = 0.0
        self.caller = None  # the clock of a thread that calls, where it is not the host's
        self.free = dict.fromkeys(("compute", "down", "up"), 0.0)
        self.busy = dict.fromkeys(self.free, 0.0)

    def device(self, size, dtype):
        return np.zeros(size, dtype)

    def pin(self, *arrays):
        return None

    def mark(self):
        return TimedMoment(self, max(self.now, self.free["compute"]))

    def hold(self, moment):
        self.free["compute"] = max(self.free["compute"], moment.time)

    def down(self, to, source, after):
        to[...] = source
        return self._run("down", source.size * self.copy, after)

    def up(self, to, source, after):
        to[...] = source
        return self._run("up", source.size * self.copy, after)

    def compute(self, time):
        self._run("compute", time, None)

    def _run(self, stream, time, after):
        asked = self.now if self.caller is None else self.caller
        begins = max(asked, self.free[stream], 0.0 if after is None else after.time)
        self.free[stream] = begins + time
        self.busy[stream] += time
        return TimedMoment(self, begins + time)


class TimedUpdates:
    """In place of `HostUpdates`: all threads together take so long for an element."""

    pinned = False

    def __init__(self, bus, time):
        self.bus, self.time, self.free = bus, time, 0.0
        self.on_done = self.units = None
        self.followed = self.settled = False
        self.waiting, self.done = [], {}

    def open(self, optimizer, grads):
        self.optimizer, self.grads = optimizer, grads

    def parts(self, size):
        return self.units

    def submit(self, part, *step):
        self.wait(part)
        self.done.pop(part, None)
        heapq.heappush(self.waiting, (part.start, self.bus.now, part, step))

    def wait(self, part=None):
        """Lets the threads work until this part is done, which is when the host goes on."""
        while any(part is None or each[2] == part for each in self.waiting):
            there = [each for each in self.waiting if each[1] <= self.free]
            if not there:
                self.free = min(each[1] for each in self.waiting)
                continue
            chosen = min(there)
            self.waiting.remove(chosen)
            heapq.heapify(self.waiting)
            _, _, mine, step = chosen
            here, optimizer = slice(mine.start, mine.stop), self.optimizer
            state = tuple(each[here] for each in optimizer.state)
            optimizer.update(optimizer.params[here], self.grads[here], state, *step)
            self.free += len(mine) * self.time
            self.done[mine] = self.free
            if self.on_done is not None:
                self.bus.caller = self.free
                self.on_done(mine)
                self.bus.caller = None
        times = list(self.done.values()) if part is None else [self.done.get(part, 0.0)]
        self.bus.now = max([self.bus.now, *times])

    def close(self):
        self.wait()


class TimedLayer(Gated):
    """A layer that takes its time on the bus's GPU; the bus is in place of the gate."""

    def forward(self, state, x, params):
        self.gate.compute(self.gate.forward)
        return state.forward(x, params)

    def backward(self, state, dy, params, grads):
        self.gate.compute(2 * self.gate.forward)
        return state.backward(dy, params, grads)


def timed(model, bus):
    """The model, whose layers are `TimedLayer`s."""
    return model.regrouped([replace(step, layer=TimedLayer(step.layer, i, bus)) for i, step in enumerate(model.steps)])
