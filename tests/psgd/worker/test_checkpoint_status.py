from psgd.checkpoint.requests import SAVE, SAVE_AND_STOP
from psgd.worker.checkpoint_status import CheckpointStatus, nobody_saves


def test_asking_twice_is_asking_once_and_stopping_is_more():
    status = CheckpointStatus()
    assert (status.reached, status.stopping, status.step, status.request, status.every) == (False, False, 0, 0, 0)
    status.ask(stop=False)
    status.ask(stop=False)
    assert status.request == SAVE
    status.ask(stop=True)
    status.ask(stop=False)
    assert status.request == SAVE_AND_STOP
    assert status.on_reached is nobody_saves and status.on_reached() is None
