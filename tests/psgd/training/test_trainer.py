"""A worker's loop with a stand-in for the connection: which samples, when it evaluates, where it resumes and stops."""

from types import SimpleNamespace

import numpy as np
import pytest

from psgd.config import TrainConfig
from psgd.data import load
from psgd.data.normalization import validate
from psgd.nn.models import build
from psgd.runtime.faults import Injector
from psgd.training.task import Task
from psgd.training.trainable import OwnModel
from psgd.training.trainer import Trainer


class StandIn:
    """A connection of one worker of some; every step is noted."""

    def __init__(self, size, workers=2, worker=0, clock=0, samples=None, stop_after=10**9, extra=None):
        self.params, self.grads = np.zeros(size, np.float32), np.zeros(size, np.float32)
        self.evaluated_params = self.params
        self.workers, self.worker, self.clock, self.is_server = workers, worker, clock, False
        self.resumed_from = None if samples is None else SimpleNamespace(manifest=SimpleNamespace(samples=samples))
        self.extra, self.mesh = extra or {}, SimpleNamespace(survival=None)
        self.steps, self.reports, self.stop, self._stop_after = [], [], False, stop_after

    def overlap(self, samples):
        return None

    def step(self, samples, loss):
        self.steps.append(samples)
        self.stop = len(self.steps) >= self._stop_after

    def report(self, accuracy, loss):
        self.reports.append((len(self.steps), accuracy))


def trained(config, **options):
    dataset = load("digits")  # 1,497 samples for training
    model = build("softmax", dataset.sample_shape, dataset.classes)
    task = Task(OwnModel(model), dataset.train.samples, dataset.test.samples, validate(dataset), dataset)
    ps = StandIn(model.layout.size, **options)
    Trainer(config, task, ps.params, Injector("", 0, ps.workers)).train(ps)
    return ps


CONFIG = TrainConfig(model="softmax", batch_size=100, epochs=2)


@pytest.mark.parametrize("worker", [0, 1])
def test_an_epoch_is_this_workers_part_and_all_make_as_many_steps(worker):
    ps = trained(CONFIG, worker=worker)
    assert len(ps.steps) == 16
    assert sum(ps.steps[:8]) == sum(ps.steps[8:]) == (749, 748)[worker]


def test_a_run_that_was_resumed_by_other_workers_is_resumed_at_its_place():
    first = trained(CONFIG, clock=0, samples=1497)  # after one epoch of another number of workers
    assert len(first.steps) == 8 and not any("." not in name for name in first.extra)
    again = trained(CONFIG, clock=3, samples=1497 + 600, extra=first.extra)  # three steps later, by the same workers
    assert again.steps == first.steps[3:]


@pytest.mark.parametrize(("every", "after"), [(1.0, [8]), (0.5, [4, 8, 12]), (0.0, [])])
def test_worker_0_evaluates_but_not_at_the_end(every, after):
    config = TrainConfig(model="softmax", batch_size=100, epochs=2, eval_every=every)
    assert [steps for steps, _ in trained(config).reports] == after
    assert trained(config, worker=1).reports == []


@pytest.mark.parametrize(
    ("options", "left"),
    [({"clock": 5}, 11), ({"samples": 1497}, 8), ({"samples": 1497 + 450}, 6), ({"clock": 16}, 0)],
)
def test_it_resumes_at_its_step(options, left):
    assert len(trained(CONFIG, **options).steps) == left


def test_a_due_evaluation_is_made_after_resuming():
    assert [steps for steps, _ in trained(CONFIG, clock=8).reports] == [0]


def test_it_stops_where_the_run_stops():
    assert len(trained(CONFIG, stop_after=3).steps) == 3
