"""On a GPU nothing of a batch meets what another stream may still read or write, in whatever schedule."""

import itertools

import numpy as np
import pytest
from harness.played_streams import PlayedComm, PlayedStreams, Race

from psgd.parallel.schedules import catalog
from psgd.parallel.schedules.instruction import Instruction
from psgd.parallel.sharded.peer_gathers import PeerGathers
from psgd.parallel.sharded.pieces import turns
from psgd.parallel.sharded.pieces.piece_exchange import PieceExchange
from psgd.parallel.sharded.slices import Slices
from psgd.parallel.stages.joined import InOrder

SIZES = [5, 90, 33, 64, 7, 18]
SCHEDULES = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero-bubble", 1)]


class Played:
    """One rank of a pipeline of two and of two copies, whose passes read units and write gradients."""

    def __init__(self, patch, schedule, chunks, microbatches, shard, peers=True, steps=1, shared=()):
        self.bus = PlayedStreams()
        self.bus.play(patch, peers)
        self.program = catalog.make(schedule, 2, microbatches, chunks).programs[0]
        self.chunks = {0: range(3), 1: range(3, 6)} if chunks == 2 else {0: range(6)}
        ends = np.cumsum([0, *SIZES]).tolist()
        slices = Slices([range(a, b) for a, b in itertools.pairwise(ends)], 2, 0)
        self.comm = comm = PlayedComm(self.bus, 2)
        self.shared = [list(shared) if unit == 5 else [] for unit in range(6)]
        order = turns.order(self.program, self.chunks)
        whole = microbatches > 1 or chunks > 1 or schedule == "zero-bubble"
        params = self.bus.device(slices.size if shard == 3 else slices.whole, np.float32)
        how = {"steps": steps, "shared": self.shared, "whole": whole}
        self.exchange = PieceExchange(comm, comm, slices, params, shard, order, **how)
        assert isinstance(self.exchange.gathers, PeerGathers) == (peers and shard == 3)

    def turn(self, unit, backward, computes=True):
        exchange = self.exchange
        exchange.arrive(unit, backward)
        if computes:
            used = [exchange.parameters[each] for each in (unit, *self.shared[unit])]
            self.bus.put(used, [exchange.gradients[unit]] if backward else [])
        (exchange.used if backward else exchange.leave)(unit)

    def batch(self, present):
        """One that has so many microbatches on this rank."""
        exchange, units = self.exchange, self.exchange.slices.units
        order = InOrder(exchange.slices.whole, exchange.ready)
        left = dict.fromkeys(range(6), present)

        def final(unit):
            left[unit] -= 1
            if not left[unit]:
                order.ready(units[unit])

        exchange.begin(present)
        for each in self.program:
            here = each.microbatch < present
            for unit, backward in turns.order([each], self.chunks):
                self.turn(unit, backward, here)
                if here and each.kind == "B":
                    final(unit)
            for unit in reversed(self.chunks[each.chunk]) if here and each.kind == "W" else ():
                self.bus.put([], [exchange.gradients[unit]])
                final(unit)
        exchange.end()

    def update(self):
        exchange = self.exchange
        exchange.finish()
        self.bus.put([exchange.own], [exchange.params])
        for unit in range(6) if exchange.stage == 2 else ():
            exchange.gathers.start(unit)
        for unit in range(6) if exchange.stage == 2 else ():
            exchange.gathers.wait(unit)

    def evaluate(self, microbatches):
        exchange = self.exchange
        passes = [Instruction("F", k, chunk) for k in range(microbatches) for chunk in self.chunks]
        order = turns.order(passes, self.chunks)
        if exchange.stage == 3:
            exchange.begin(0, trains=False, turns=exchange.planned(order))
        for unit, _ in order:
            self.turn(unit, False)
        if exchange.stage == 3:
            exchange.end()

    def run(self, microbatches):
        for present in (microbatches, 1, microbatches, max(1, microbatches - 1), microbatches):
            for _ in range(self.exchange.steps):
                self.batch(present)
            self.update()
            self.evaluate(2)
        for _ in range(self.exchange.steps):
            self.exchange.pass_by()
        self.update()
        self.exchange.free()


@pytest.mark.parametrize("shard", [2, 3])
@pytest.mark.parametrize(("schedule", "chunks"), SCHEDULES)
@pytest.mark.parametrize("peers", [True, False])
def test_no_races(schedule, chunks, shard, peers):
    for microbatches in (2, 4) if chunks == 2 else (1, 3, 4):
        for steps in (1, 3):
            for shared in ((), (0, 1)):
                with pytest.MonkeyPatch.context() as patch:
                    Played(patch, schedule, chunks, microbatches, shard, peers, steps, shared).run(microbatches)


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("lost", ["follow", "learn"])
def test_a_forgotten_wait_would_be_seen(microbatches, lost):
    """The caller's for the exchange, or the exchange's for the caller."""
    with pytest.MonkeyPatch.context() as patch:
        played = Played(patch, "1f1b", 1, microbatches, 3)
        before = played.bus.learn

        def learn(stream, clock):
            if (stream == "compute") != (lost == "follow") or stream == "host" or clock is played.bus.clocks["host"]:
                before(stream, clock)

        patch.setattr(played.bus, "learn", learn)
        with pytest.raises(Race):
            played.run(microbatches)


def test_copies_do_not_wait_for_reductions():
    """Of a copy that has fewer microbatches: its reductions wait for others, which wait for its gathers' like."""
    with pytest.MonkeyPatch.context() as patch:
        played = Played(patch, "1f1b", 1, 4, 3)
        scatters, gathers = (each for each in played.bus.clocks if each.startswith("side"))
        played.batch(1)
        assert played.bus.clocks[scatters].get(scatters) == 6
        assert scatters not in played.bus.clocks[gathers]
        assert scatters not in played.bus.clocks["compute"]


@pytest.mark.parametrize("shard", [2, 3])
@pytest.mark.parametrize(("schedule", "chunks"), SCHEDULES)
@pytest.mark.parametrize("peers", [True, False])
def test_all_copies_start_the_same_calls(schedule, chunks, shard, peers):
    """Whatever each has of a batch: kernels that wait for their like in another order would wait for ever."""
    most = 4
    for steps in (1, 2):
        orders = []
        for present in range(most + 1):
            with pytest.MonkeyPatch.context() as patch:
                played = Played(patch, schedule, chunks, most, shard, peers, steps)
                for _ in range(2):
                    for _ in range(steps):
                        played.batch(present) if present else played.exchange.pass_by()
                    played.update()
                    played.evaluate(2)
                orders.append(played.comm.started)
        assert all(order == orders[0] for order in orders), (steps, orders)
        assert len(orders[0]) >= 2 * steps * len(SIZES)
