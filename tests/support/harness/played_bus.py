"""A GPU that one process plays, and a witness of whether two of its streams, or the host, may ever be in conflict.

Copies and layers are done at once. Beside that every stream and the host has a vector clock (Lamport 1978, Mattern
1988): a moment has its stream's clock, and whoever waits for it takes that over. An access to memory that another one
conflicts with and that is not ordered before it would be a race on a GPU, however lucky this run was.
"""

import random
import threading
from dataclasses import replace

import numpy as np

from psgd.nn.gates.gated import Gated


class Race(Exception):
    """Two accesses to the same memory that nothing orders."""


class PlayedMoment:
    def __init__(self, bus, stream):
        self.bus, self.clock = bus, dict(bus.clocks[stream])

    def passed(self):
        with self.bus.lock:
            if self.bus.dice.random() < 0.5:
                return False
            self.bus.learn("host", self.clock)
            return True

    def wait(self):
        with self.bus.lock:
            self.bus.learn("host", self.clock)


class PlayedBus:
    """Implements `psgd.backend.offload.bus.Bus`.

    Attributes:
        bytes_on_device: of what was made there.
        bytes_down, bytes_up: copied.
    """

    launcher = None

    def __init__(self, seed=0):
        self.clocks = {name: {} for name in ("host", "compute", "down", "up")}
        self.accesses = []  # (from, to, stream, time, writes)
        self.lock = threading.RLock()
        self.dice = random.Random(seed)
        self.bytes_on_device = self.bytes_down = self.bytes_up = 0
        self.keep = []

    def device(self, size, dtype):
        made = np.zeros(size, dtype)
        self.keep.append(made)  # so that no address is used twice
        self.bytes_on_device += made.nbytes
        return made

    def pin(self, *arrays):
        self.keep += arrays
        return None

    def mark(self):
        with self.lock:
            self.launch("compute")
            return PlayedMoment(self, "compute")

    def down(self, to, source, after):
        with self.lock:
            self.bytes_down += source.nbytes
            return self._copy("down", to, source, after)

    def up(self, to, source, after):
        with self.lock:
            self.bytes_up += source.nbytes
            return self._copy("up", to, source, after)

    def hold(self, moment):
        with self.lock:
            self.learn("compute", moment.clock)

    def learn(self, stream, clock):
        mine = self.clocks[stream]
        for name, time in clock.items():
            mine[name] = max(mine.get(name, 0), time)

    def launch(self, stream):
        """What is put on a stream comes behind all that the host has seen."""
        if stream != "host":
            self.learn(stream, self.clocks["host"])
        self.clocks[stream][stream] = self.clocks[stream].get(stream, 0) + 1

    def use(self, stream, reads=(), writes=()):
        """An operation's accesses."""
        with self.lock:
            self.launch(stream)
            clock = self.clocks[stream]
            for arrays, writing in ((reads, False), (writes, True)):
                for array in arrays:
                    self._access(stream, clock, *np.lib.array_utils.byte_bounds(array), writing)

    def _access(self, stream, clock, start, stop, writing):
        kept = []
        for other in self.accesses:
            begin, end, by, time, wrote = other
            meets = begin < stop and start < end
            known = time <= clock.get(by, 0)
            if meets and (writing or wrote) and not known:
                does, may = ("writes" if writing else "reads"), ("write" if wrote else "read")
                raise Race(f"{stream} {does} what {by} may still {may}")
            covered = start <= begin and end <= stop
            if not (covered and known and (writing or not wrote)):  # else this one stands for both
                kept.append(other)
        self.accesses = [*kept, (start, stop, stream, clock[stream], writing)]

    def _copy(self, stream, to, source, after):
        if after is not None:
            self.learn(stream, after.clock)
        self.use(stream, [source], [to])
        to[...] = source
        return PlayedMoment(self, stream)


class Watched(Gated):
    """A layer whose accesses to parameters and gradients the bus, in place of the gate, is told of."""

    def forward(self, state, x, params):
        self.gate.use("compute", params)
        return state.forward(x, params)

    def backward(self, state, dy, params, grads):
        self.gate.use("compute", params, grads)
        return state.backward(dy, params, grads)


def watched(model, bus):
    """The model, whose layers are `Watched`."""
    return model.regrouped([replace(step, layer=Watched(step.layer, i, bus)) for i, step in enumerate(model.steps)])


def seen(rule, bus):
    """The rule, whose accesses the bus is told of."""

    def update(params, grad, state, lr, scale, step):
        bus.use("host", [grad], [params] if params.size else [])
        rule.update(params, grad, state, lr, scale, step)

    return rule._replace(update=update)
