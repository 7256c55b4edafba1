"""Checkpoint points in a simulated log: nothing is in flight at one, no worker is forgotten after it."""

import functools
import random

import pytest

from psgd import strategies
from psgd.checkpoint.requests import SAVE, SAVE_AND_STOP
from psgd.server.checkpoint_points import CheckpointPoints
from psgd.server.log_position import LogPosition
from psgd.server.wire import Header, MessageKind

WORKERS = 4
CASES = [
    ("sync", {}),
    ("async", {}),
    ("softsync", {"softsync": 3}),
    ("ssp", {"staleness": 1}),
    ("ssp", {"staleness": 4}),
]


class Log:
    """What a server would do with a strategy's entries; workers push as `rng` has it."""

    def __init__(self, strategy, clocks=(0,) * WORKERS, version=0):
        self.strategy, self.position = strategy, LogPosition(WORKERS)
        self.clocks, self.version, self.open = list(clocks), version, False
        self.pending, self.waiting = {}, set()
        self.heard = dict.fromkeys(range(WORKERS), 0)  # checkpoints that each worker has heard of
        self.live = set(range(WORKERS))
        self.saved = []

    def do(self, entries):
        for entry in entries:
            self.position.note(entry, self.pending, self.version)
            samples = [self.pending.pop(member.worker).samples for member in entry.group]
            assert [self.clocks[member.worker] for member in entry.group] == [m.push for m in entry.group]
            self.waiting.update(member.worker for member in entry.group)
            if entry.stays_open:
                self.open = self.open or any(samples)
            else:
                self.version += self.open or any(samples)
                self.open = False
            if entry.checkpoint:
                assert not self.pending and self.waiting >= self.live, "something is under way"
                assert all(heard == self.position.checkpoints - 1 for w, heard in self.heard.items() if w in self.live)
                facts = self.position.facts()
                assert facts["version"] == self.version
                assert facts["clocks"] == (self.clocks if self.position.whole else [])
                assert set(self.position.savers) == self.waiting
                self.saved.append((entry.checkpoint, facts))
            assert set(entry.release) <= self.waiting
            self.waiting -= set(entry.release)
            for worker in entry.release:
                self.heard[worker] = self.position.checkpoints

    def push(self, worker, ask=0):
        self.clocks[worker] += 1
        self.pending[worker] = Header(
            kind=MessageKind.PUSH,
            worker=worker,
            push=self.clocks[worker],
            version=self.version,
            samples=(worker + self.clocks[worker]) % 4,
            position=7,
            checkpoint_request=ask,
        )
        self.do(self.strategy.on_push(self.pending[worker], 0.0))

    def run(self, rng, steps, asks=()):
        """Until all have made their steps; a strategy that leaves all waiting is a failure."""
        while self.live:
            able = sorted(self.live - self.waiting - set(self.pending))
            assert able, "nobody may go on"
            worker = rng.choice(able)
            if self.clocks[worker] >= steps[worker]:
                self.live.discard(worker)
                self.do(self.strategy.on_done(worker, 0.0))
            else:
                self.push(worker, SAVE if (worker, self.clocks[worker]) in asks else 0)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("name", "options"), CASES)
def test_checkpoints(name, options, seed):
    rng = random.Random(seed)
    steps = [rng.randrange(10, 30) for _ in range(WORKERS)]
    log = Log(CheckpointPoints(strategies.create(name, WORKERS, **options), WORKERS, every=7))
    log.run(rng, steps, asks={(2, 3), (1, 4), (0, 8)})
    versions = [facts["version"] for _, facts in log.saved]
    assert versions == sorted(set(versions)) and len(versions) >= log.version // 7 - WORKERS
    if name == "sync":
        assert set(range(7, log.version, 7)) <= set(versions)

    # From any checkpoint on, the strategy goes on as one that knows it all: nobody hangs, and clocks go on.
    _, facts = rng.choice(log.saved)
    position, strategy = (
        LogPosition(WORKERS),
        CheckpointPoints(strategies.create(name, WORKERS, **options), WORKERS, every=7),
    )
    point = position.restore(facts)
    strategy.restore(point)
    again = Log(strategy, facts["clocks"], facts["version"])
    again.position, again.open = position, point.open_contributions > 0
    again.run(rng, [max(step, clock) for step, clock in zip(steps, facts["clocks"], strict=True)])
    assert again.clocks == log.clocks


def test_nothing_is_held_back_where_no_checkpoint_is_due():
    bare, points = strategies.create("ssp", WORKERS), CheckpointPoints(strategies.create("ssp", WORKERS), WORKERS)
    for log in (a := Log(bare), b := Log(points)):
        log.run(random.Random(3), [9] * WORKERS)
    assert a.version == b.version and not b.saved


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("name", "options"), CASES)
def test_workers_that_die_hold_no_checkpoint_back(name, options, seed):
    rng = random.Random(seed)
    log = Log(CheckpointPoints(strategies.create(name, WORKERS, **options), WORKERS, every=7))
    log.run = functools.partial(run_losing, log)
    log.run(rng, 20, deaths={1: 5, 3: 11})
    assert len(log.saved) >= log.version // 7 - WORKERS and log.clocks[0] == log.clocks[2] == 20
    log.strategy.on_back([2])
    log.live.add(2)
    for _ in range(20):  # alone: each push is answered, also where a checkpoint is due
        log.push(2)
        assert not log.waiting


def run_losing(log, rng, steps, deaths):
    """As `Log.run`, but workers die at some push of theirs, which is not applied if it waits."""
    log.heard = {worker: 0 for worker in range(WORKERS) if worker not in deaths}
    while log.live:
        worker = rng.choice(sorted(log.live - log.waiting - set(log.pending)))
        if log.clocks[worker] == steps:
            log.live.discard(worker)
            log.do(log.strategy.on_done(worker, 0.0))
            continue
        log.push(worker)
        if deaths.get(worker) == log.clocks[worker]:
            log.clocks[worker] -= log.pending.pop(worker, None) is not None
            log.live.discard(worker)
            log.waiting.discard(worker)
            log.position.lose(worker)
            log.strategy.on_lost(worker)
            log.do(log.strategy.on_done(worker, 0.0))


def test_to_stop_wins():
    log = Log(CheckpointPoints(strategies.create("async", WORKERS), WORKERS))
    for worker in range(WORKERS):
        log.push(worker, ask=(SAVE, SAVE_AND_STOP, 0, SAVE)[worker])
    assert [level for level, _ in log.saved] == [SAVE_AND_STOP]
    assert not log.waiting
