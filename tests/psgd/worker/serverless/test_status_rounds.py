"""StatusRounds of workers without a server: what each learns, what worker 0 counts, and how they end."""

import math
import time

import numpy as np
import pytest
from harness.rates import Rates

from psgd.collectives import Communicator
from psgd.metrics.run_metrics import RunMetrics
from psgd.metrics.wait_log import WaitLog
from psgd.worker.serverless.status_rounds import StatusRounds


@pytest.mark.ranks(1, 3, 5)
def test_everyone_learns_what_each_did_since_the_last_round(comm):
    metrics = RunMetrics(comm.size)
    with Communicator(comm) as workers:
        rounds = StatusRounds(workers, metrics)
        params = np.full(7, comm.rank + 5.0)
        rounds.begin(params)
        assert np.all(params == 5)
        mine = [2**comm.rank, 0, 10 * comm.rank, 3]
        for samples in mine[:2]:
            rounds.note(samples, math.nan if samples == 0 else 1.0 + comm.rank)
        everyone = np.arange(comm.size)
        assert rounds.exchange(mine[2], 2.0) == sum(2**k + 10 * k for k in range(comm.size))
        np.testing.assert_array_equal(rounds.samples, 2**everyone + 10 * everyone)
        np.testing.assert_array_equal(rounds.pushes, 1 + (everyone > 0))
        assert rounds.exchange() == 0 and not rounds.samples.any() and not rounds.pushes.any()
        assert rounds.exchange(mine[3], 4.0) == 3 * comm.size
        assert rounds.version == 2 and not rounds.all_done and rounds.active == comm.size
    if comm.rank == 0:
        assert metrics.pushes == [2 + (k > 0) for k in range(comm.size)]
        assert dict(metrics.staleness) == {0: sum(metrics.pushes)}
        losses = sum(2**k * (1 + k) + 10 * k * 2 + 3 * 4 for k in range(comm.size))
        assert metrics.loss == pytest.approx(losses / sum(2**k + 10 * k + 3 for k in range(comm.size)))
    else:
        assert metrics.pushes == [0] * comm.size


@pytest.mark.ranks(3)
def test_who_is_done_goes_on_and_keeps_its_seconds(comm):
    """Samples may come with the end; seconds count until a worker's own end, not until the last one's."""
    metrics = RunMetrics(3)
    with Communicator(comm) as workers:
        rounds = StatusRounds(workers, metrics)
        rounds.begin(np.zeros(1))
        rounds.waited_s += 0.5 + comm.rank
        ended = []
        for turn in range(4):
            rounds.exchange(4 if turn == comm.rank else 0, 1.0, done=turn >= comm.rank)
            assert rounds.samples.tolist() == [4 * (turn == k) for k in range(3)]
            ended.append((rounds.active, rounds.all_done))
            time.sleep(0.05)
        assert ended == [(2, False), (1, False), (0, True), (0, True)]
        assert rounds.version == 3
    if comm.rank == 0:
        assert metrics.waited_s == [0.5, 1.5, 2.5] and metrics.pushes == [1, 1, 1]
        assert metrics.computed_s[0] + 0.5 < 0.05 and metrics.computed_s[2] - metrics.computed_s[0] < -1.8


@pytest.mark.ranks(3)
def test_evaluations_reach_worker_0_and_its_stop_reaches_all(comm):
    metrics = RunMetrics(3, target_accuracy=0.8)
    with Communicator(comm) as workers:
        rounds = StatusRounds(workers, metrics)
        rounds.begin(np.zeros(1))
        if comm.rank == 2:
            rounds.report(0.25, 1.0)
            rounds.report(0.5, 1.25)
        seen, known = [], []
        for turn in range(5):
            if turn == 3 and comm.rank == 1:
                rounds.report(0.875, 0.25)
            if turn == 2 and comm.rank == 0:
                rounds.report(0.75, 0.5)
                assert (metrics.accuracy, metrics.test_loss) == (0.75, 0.5)
            rounds.exchange()
            seen.append(rounds.stop)
            known.append((metrics.accuracy, metrics.test_loss))
        assert seen == [False, False, False, False, True]
        assert comm.rank or known[:3] == [(0.25, 1.0), (0.5, 1.25), (0.75, 0.5)]
    if comm.rank == 0:
        assert (metrics.accuracy, metrics.test_loss) == (0.875, 0.25)
    else:
        assert metrics.accuracy is None


@pytest.mark.ranks(3)
def test_the_last_round_is_behind_the_last_evaluation(comm):
    told = []
    metrics = RunMetrics(3, lambda seen, event: told.append(seen.accuracy))
    with Communicator(comm) as workers:
        rounds = StatusRounds(workers, metrics)
        rounds.begin(np.zeros(1))
        for part in range(comm.rank * 2):
            rounds.report((comm.rank + part) / 8, 1.0)
        turns = 0
        while not rounds.all_done:
            rounds.exchange(done=True)
            turns += 1
    assert turns == 4
    assert comm.rank or told == [1 / 8, 2 / 8, 2 / 8, 3 / 8, 4 / 8, 5 / 8]


@pytest.mark.ranks(3)
def test_who_came_last_is_whom_the_others_waited_for(comm):
    """Each in turn comes 0.2 s late, the last time one that has ended then; who has ended waits no more."""
    metrics = RunMetrics(3, waits=WaitLog())
    with Communicator(comm) as workers:
        rounds = StatusRounds(workers, metrics)
        rounds.begin(np.zeros(1))
        for turn in range(4):
            if turn % 3 == comm.rank:
                time.sleep(0.2)
            rounds.exchange(1, 1.0, done=turn == 3 and comm.rank < 2)
        rounds.exchange(done=True)
    if comm.rank == 0:
        rows = [row for row in metrics.waits.take()["rows"] if row[3] - row[2] > 0.1]
        assert [row[:2] for row in rows] == [(1, 0), (2, 0), (0, 1), (2, 1), (0, 2), (1, 2), (2, 0)]
        starts, stops = [row[2] for row in rows], [row[3] for row in rows]
        assert starts[0] > -0.05 and all(0.1 < stop - start < 1 for start, stop in zip(starts, stops, strict=True))
        assert [max(stops[a:b]) < min(starts[b:]) + 0.1 for a, b in ((0, 2), (2, 4), (4, 6))] == [True] * 3
        assert metrics.waited == [2, 2, 3]


@pytest.mark.ranks(3)
def test_all_go_by_the_settings_of_the_worker_with_the_most_steps(comm):
    with Communicator(comm) as workers:
        rates = Rates(comm.rank, 0.1)
        rounds = StatusRounds(workers, RunMetrics(3), settings=rates)
        rounds.begin(np.zeros(1))
        for turn, (steps, expected) in enumerate([((1, 1, 1), 0), ((0, 2, 1), 1), ((3, 0, 1), 0), ((0, 0, 0), None)]):
            own = 10 * turn + comm.rank
            rates.values[0] = own
            for _ in range(steps[comm.rank]):
                rounds.note(4, 1.0)
            rounds.exchange()
            assert rates.values == [own if expected is None else 10 * turn + expected, 0.1]


@pytest.mark.ranks(3)
def test_where_worker_0_may_die_all_count_what_is_complete_once(comm):
    """Also a round that was made again, and one that is complete as others say."""
    metrics = RunMetrics(3)
    with Communicator(comm) as workers:
        rounds = StatusRounds(workers, metrics, everyone=True)
        rounds.begin(np.zeros(1))
        if comm.rank == 0:
            rounds.report(0.5, 2.0)
        rounds.note(4, 1.0)
        rounds.keep()
        rounds.exchange()
        assert metrics.pushes == [0, 0, 0]
        again = rounds.regrouped(workers, range(3))
        again.put_back()
        assert again.version == 0
        again.exchange()
        again.count()
        again.count()
        assert metrics.pushes == [1, 1, 1] and metrics.loss == 1.0
        assert (metrics.accuracy, metrics.since_best) == (0.5, 0)
        again.note(4, 3.0)
        again.keep()
        again.exchange()
        last = again.regrouped(workers, range(3))
        last.take(2, 3, 0, 0)
        last.count()
        assert metrics.pushes == [2, 2, 2] and metrics.loss == 2.0 and last.version == 2
        assert last.exchange() == 0
