"""What a worker has requested, and what a connection hears of a checkpoint that is reached while it waits."""

from psgd.checkpoint.requests import SAVE, SAVE_AND_STOP
from psgd.worker.checkpoint_status import CheckpointStatus, nobody_saves


def test_the_larger_request_counts():
    status = CheckpointStatus()
    assert status.request == 0 and not status.reached and not status.stopping
    status.ask(stop=False)
    assert status.request == SAVE
    status.ask(stop=True)
    status.ask(stop=False)
    assert status.request == SAVE_AND_STOP


def test_nobody_saves_outside_of_a_connection():
    status = CheckpointStatus()
    assert status.on_reached is nobody_saves
    status.on_reached()
