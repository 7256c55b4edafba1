from psgd.server.log import CheckpointPoint, Contribution, LogEntry
from psgd.server.log_position import LogPosition
from psgd.server.wire import Header, MessageKind


def pushes(*headers):
    return {
        worker: Header(kind=MessageKind.PUSH, worker=worker, push=push, samples=samples, position=position)
        for worker, push, samples, position in headers
    }


def counted():
    """Worker 0 pushed twice, worker 1 once into a group that is open, worker 2 nothing."""
    position = LogPosition(3)
    position.note(LogEntry((Contribution(0, 1),), (0,)), pushes((0, 1, 8, 8)), 0)
    position.note(LogEntry((Contribution(0, 2),), (), stays_open=True), pushes((0, 2, 0, 8)), 1)
    position.note(LogEntry((Contribution(1, 1),), (), stays_open=True), pushes((1, 1, 4, 4)), 1)
    position.note(LogEntry((), (0, 1), stays_open=True, checkpoint=1), {}, 1)
    return position


def test_a_checkpoint_says_where_each_worker_stands():
    position = counted()
    assert (position.checkpoints, position.checkpoint_version, position.savers) == (1, 1, [0, 1])
    facts = {"actions": 4, "version": 1, "clocks": [2, 1, 0], "opened": 1, "positions": [8, 4, 0]}
    assert position.facts() == facts


def test_a_step_closes_the_group():
    position = counted()
    position.note(LogEntry((Contribution(2, 1),), (2,)), pushes((2, 1, 1, 1)), 1)
    assert position.facts()["opened"] == 0 and position.facts()["actions"] == 5


def test_a_resumed_log_counts_on():
    position = LogPosition(3)
    assert position.restore(counted().facts()) == CheckpointPoint(4, 1, [2, 1, 0], 1)
    position.note(LogEntry((Contribution(2, 1),), (2,), checkpoint=1), pushes((2, 1, 1, 1)), 2)
    assert position.checkpoints == 1, "counted in this process"
    assert position.facts()["clocks"] == [2, 1, 1] and position.facts()["actions"] == 5
    assert position.savers == [2]
