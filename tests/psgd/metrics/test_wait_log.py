"""Who waited for whom: the rows, and whole runs with a slow worker, whose waits follow from how slow it is."""

import json
from collections import Counter

import pytest

from psgd import training
from psgd.config import configure
from psgd.metrics import wait_log

STEPS = 16  # of each of 3 workers with a batch of 32, on the 1,497 digits of an epoch
LEAST_S, FACTOR, SLOW = 0.01, 4, 1
INJECT = f"slow:{SLOW}:{FACTOR},compute:{LEAST_S}"


def test_rows_are_kept_until_they_are_taken():
    kept = wait_log.WaitLog()
    assert kept.take() == {}
    kept.add(0, 1, 1.0, 1.0 + 0.99 * wait_log.FLOOR_S)
    kept.add(2, 1, 0.5, 0.5 + 1.01 * wait_log.FLOOR_S)
    assert kept.take() == {"rows": [(2, 1, 0.5, 0.50101)]}
    assert kept.take() == {}


def test_there_are_at_most_so_many_and_one_line_says_so(monkeypatch):
    monkeypatch.setattr(wait_log, "LARGEST", 3)
    kept = wait_log.WaitLog()
    for turn in range(6):
        kept.add(0, 1, turn, turn + 0.5)
        if turn == 1:
            assert len(kept.take()["rows"]) == 2
    assert kept.take() == {"rows": [(0, 1, 2, 2.5)], "stopped": 3.5}
    kept.add(0, 1, 7.0, 8.0)
    assert kept.take() == {}


def train(comm, tmp_path, strategy, servers, **options):
    """One epoch; the result and the rows of waits on rank 0, None elsewhere."""
    config = configure(
        epochs=1, batch_size=32, strategy=strategy, servers=servers, log=tmp_path / "log.jsonl", **options
    )
    result = training.run(config, comm)
    if result is None:
        return None
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert {key: lines[-1][key] for key in result} == result
    assert result["workers_applied"] == [STEPS] * 3 and result["workers_dropped"] == [0] * 3
    return result, [row for line in lines if line["event"] == "waits" for row in line["rows"]]


def check_that_all_waited_for_the_slow_one(result, rows):
    """Of each step the others can wait FACTOR - 1 times LEAST_S, less what they take themselves beyond LEAST_S.

    Half of that is asked for, as the machine may be busy. They cannot wait longer than the run is without what they
    themselves take at least, nor longer than they were in `step`.
    """
    assert sum(result["workers_waited"]) == 2 * STEPS  # in each step all but the last to come
    assert Counter(worker for worker, *_ in rows) <= Counter(dict(enumerate(result["workers_waited"])))
    for worker in {0, 1, 2} - {SLOW}:
        mine = [(other, stop - start) for who, other, start, stop in rows if who == worker]
        for_slow = sum(seconds for other, seconds in mine if other == SLOW)
        assert for_slow >= 0.5 * STEPS * (FACTOR - 1) * LEAST_S
        assert for_slow >= 0.75 * sum(seconds for _, seconds in mine)
        assert sum(seconds for _, seconds in mine) <= min(
            result["seconds"] - STEPS * LEAST_S, result["waited_seconds"][worker] + 1e-3
        )
        assert result["waited_seconds"][worker] + result["computed_seconds"][worker] >= STEPS * FACTOR * LEAST_S
    assert result["workers_waited"][SLOW] <= STEPS / 2
    assert result["computed_seconds"][SLOW] >= STEPS * FACTOR * LEAST_S
    assert all(0 <= start < stop <= result["seconds"] for *_, start, stop in rows)


@pytest.mark.ranks(4)
def test_under_sync_the_others_wait_for_the_slow_worker(comm, tmp_path):
    if told := train(comm, tmp_path, "sync", 1, inject=INJECT):
        check_that_all_waited_for_the_slow_one(*told)


@pytest.mark.ranks(3)
def test_under_allreduce_too(comm, tmp_path):
    if told := train(comm, tmp_path, "allreduce", None, inject=INJECT):
        check_that_all_waited_for_the_slow_one(*told)


@pytest.mark.ranks(4)
def test_under_async_nobody_waits_for_anybody(comm, tmp_path):
    if told := train(comm, tmp_path, "async", 1, inject=INJECT):
        result, rows = told
        assert result["workers_waited"] == [0, 0, 0] and rows == []


@pytest.mark.ranks(5)
def test_under_ssp_waits_are_those_that_the_recorded_order_says(comm, tmp_path):
    """A push waited where the action that applied it did not release its worker; the one that did says for whom."""
    told = train(comm, tmp_path, "ssp", 2, staleness=2, record=tmp_path / "order", inject=INJECT)
    if told is None:
        return
    result, rows = told
    applied, waited, pairs, ends = Counter(), Counter(), Counter(), 0
    for line in (tmp_path / "order").read_text().splitlines()[1:]:
        action = json.loads(line)
        came = [worker for worker, *_ in action["apply"]]
        applied.update(came)
        late = set(action["release"]) - set(came)
        waited.update(late)
        ends += 0 if came else len(late)  # released by an end, of whom the file does not say
        pairs.update((worker, other) for worker in late for other in came)
    assert [applied[worker] for worker in range(3)] == result["workers_applied"]
    assert [waited[worker] for worker in range(3)] == result["workers_waited"]
    assert waited[0] >= STEPS / 2 and waited[SLOW] < STEPS / 2
    assert (Counter((worker, other) for worker, other, *_ in rows) - pairs).total() <= ends
