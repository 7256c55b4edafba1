import pytest

from psgd import strategies
from psgd.kernels.errors import UsageError
from psgd.server.log import Contribution, LogEntry
from psgd.server.wire import Header, MessageKind


def push(worker, number, version=0, samples=1):
    return Header(kind=MessageKind.PUSH, worker=worker, push=number, version=version, samples=samples)


def test_sync_waits_for_all_and_sums_in_worker_order():
    sync = strategies.create("sync", 3)
    assert sync.on_push(push(2, 1), 0.0) == ()
    assert sync.on_push(push(0, 1), 0.1) == ()
    assert sync.on_push(push(1, 1), 0.2) == (
        LogEntry((Contribution(0, 1), Contribution(1, 1), Contribution(2, 1)), (0, 1, 2)),
    )


def test_sync_goes_on_without_a_worker_that_is_done():
    sync = strategies.create("sync", 3)
    sync.on_push(push(2, 1), 0.0)
    sync.on_push(push(0, 1), 0.0)
    assert sync.on_done(1, 0.1) == (LogEntry((Contribution(0, 1), Contribution(2, 1)), (0, 2)),)
    assert sync.on_done(0, 0.2) == ()
    assert sync.on_push(push(2, 2), 0.3) == (LogEntry((Contribution(2, 2),), (2,)),)
    assert sync.on_done(2, 0.4) == ()


def test_async_applies_and_releases_each_push():
    asynchronous = strategies.create("async", 3)
    assert asynchronous.on_push(push(1, 4), 0.0) == (LogEntry((Contribution(1, 4),), (1,)),)
    assert asynchronous.on_done(1, 0.0) == ()


def test_unknown_names_and_options():
    with pytest.raises(UsageError, match="expected one of sync, async"):
        strategies.create("psync", 2)
    with pytest.raises(UsageError, match=r"strategy sync: expected no options of its own, got staleness"):
        strategies.create("sync", 2, staleness=3)
    for wrong, right in (("learning_rate", "lr"), ("optimizer", "rule")):
        with pytest.raises(UsageError, match=f"did you mean {right}\\?"):
            strategies.create("sync", 2, ["lr", "rule"], **{wrong: 1})
