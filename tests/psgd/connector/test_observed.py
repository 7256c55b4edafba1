"""What callbacks are told, on real ranks, and what becomes of a run in which one fails."""

import numpy as np
import pytest

import psgd
from psgd import training
from psgd.config import TrainConfig
from psgd.connection import Connection
from psgd.metrics.run_metrics import RunMetrics


class Notes(psgd.Callback):
    """Writes down what it is told."""

    def __init__(self):
        self.seen = []

    def on_train_begin(self, ps):
        self.seen.append(("begin", ps.worker, float(ps.params[0])))

    def on_step_end(self, ps, samples, loss):
        self.seen.append(("step", ps.clock, samples, loss))

    def on_epoch_end(self, ps, epoch):
        self.seen.append(("epoch", epoch))

    def on_evaluate(self, ps, accuracy, loss):
        self.seen.append(("evaluate", accuracy, loss))

    def on_save(self, ps, step):
        self.seen.append(("save", step))

    def on_exception(self, ps, error):
        self.seen.append(("exception", type(error)))

    def on_train_end(self, ps):
        self.seen.append(("end", ps.is_worker, float(ps.params[0])))


def names(notes):
    return [each[0] for each in notes.seen]


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("strategy", ["sync", "allreduce"])
def test_each_is_told_in_its_place(comm, tmp_path, strategy):
    notes, workers = Notes(), max(1, comm.size - (strategy == "sync"))
    metrics = RunMetrics(workers, samples_per_epoch=8 * workers)
    options = {"strategy": strategy, "checkpoint_dir": tmp_path, "checkpoint_every": 3, "metrics": metrics}
    with psgd.connect(comm, np.zeros(5), lr=0.5, callbacks=[notes], **options) as ps:
        for step in range(4):
            ps.grads[:] = 1
            ps.step(4, 0.25 + step)
            if step == 1:
                ps.report(0.5, 1.5)
    if not ps.is_worker:
        assert notes.seen == [("save", 3), ("end", False, -2.0)]
        return
    assert notes.seen == [
        ("begin", ps.mesh.index, 0.0),
        ("step", 1, 4, 0.25),
        ("step", 2, 4, 1.25),
        ("epoch", 1),
        ("evaluate", 0.5, 1.5),
        ("save", 3),
        ("step", 3, 4, 2.25),
        ("step", 4, 4, 3.25),
        ("epoch", 2),
        ("end", True, -2.0),
    ]


@pytest.mark.ranks(1, 4)
def test_a_whole_training_tells_of_its_epochs(comm):
    notes = Notes()
    training.run(TrainConfig(epochs=3, strategy="async", model="softmax"), comm, callbacks=[notes])
    if names(notes)[0] == "begin":
        assert [each[1] for each in notes.seen if each[0] == "epoch"] == [1, 2, 3]
        assert names(notes)[-1] == "end" and names(notes)[-2] == "epoch"
    assert names(notes)[-1] == "end"


@pytest.mark.ranks(1, 3)
def test_epochs_are_counted_on_after_resuming(comm, tmp_path):
    config = {"strategy": "sync", "model": "softmax", "checkpoint_dir": tmp_path, "checkpoint_every": 16}
    training.run(TrainConfig(epochs=2, **config), comm)
    comm.Barrier()
    notes = Notes()
    training.run(TrainConfig(epochs=4, resume=True, **config), comm, callbacks=[notes])
    if names(notes)[0] == "begin":
        epochs = [each[1] for each in notes.seen if each[0] == "epoch"]
        assert epochs == list(range(epochs[0], 5)) and 1 <= epochs[0] <= 3


class Fails(psgd.Callback):
    def __init__(self, method, only):
        self._only = only
        setattr(self, method, self._fail)

    def _fail(self, ps, *arguments):
        if ps.mesh.role == "worker" and ps.mesh.index == self._only:
            raise ZeroDivisionError("the program's own")


@pytest.mark.ranks(3)
@pytest.mark.parametrize("strategy", ["sync", "allreduce", "hogwild"])
@pytest.mark.parametrize("method", ["on_train_begin", "on_step_end", "on_evaluate", "on_save"])
def test_an_error_in_a_callback_is_the_programs_own_and_ends_the_run_everywhere(comm, tmp_path, strategy, method):
    notes = Notes()
    options = {"strategy": strategy, "checkpoint_dir": tmp_path, "checkpoint_every": 2}
    mine = None
    try:
        with psgd.connect(comm, np.zeros(5), callbacks=[notes, Fails(method, only=1)], **options) as ps:
            for _ in range(2000):
                ps.step()
                ps.report(0.5, 0.5)
    except (ZeroDivisionError, psgd.PeerLostError) as error:
        mine = error
    assert names(notes).count("exception") == 1 and "end" not in names(notes)
    assert notes.seen[-1] == ("exception", type(mine))
    everyone = comm.allgather(type(mine).__name__)
    assert sorted(everyone) == ["PeerLostError", "PeerLostError", "ZeroDivisionError"]
    comm.Barrier()


@pytest.mark.ranks(2)
def test_without_callbacks_and_trace_the_connection_is_the_plain_one(comm):
    with psgd.connect(comm, np.zeros(3)) as ps:
        assert ps.worker == 0
    assert type(ps) is Connection


@pytest.mark.ranks(2)
def test_what_is_no_list_of_callbacks_is_refused(comm):
    for given, got in (([Notes], "the class Notes"), ([print], "builtin_function_or_method"), (Notes(), "Notes")):
        said = f"callbacks: expected a list of instances of psgd.Callback, got {got}"
        with pytest.raises(psgd.UsageError, match=said):
            psgd.connect(comm, np.zeros(3), callbacks=given)
