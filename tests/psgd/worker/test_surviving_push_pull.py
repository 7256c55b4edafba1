"""A worker asks before it leaves whether the run is over."""

from types import SimpleNamespace

import numpy as np

from psgd.metrics.run_metrics import RunMetrics
from psgd.server.wire import Header, MessageKind
from psgd.worker import surviving_push_pull
from psgd.worker.surviving_push_pull import SurvivingPushPullWorker


class FakeTransport:
    """Answers as it is told: at the first `more` ends there is more to do."""

    def __init__(self, context, gradients):
        self.worker, self.workers, self.over, self.header, self.asked = 0, 2, False, Header(), []
        self.more, self.bytes_sent, self.bytes_received, self.checkpoints = context.more, 0, 0, 0

    def exchange(self, kind, with_grads):
        self.asked.append(kind)
        self.over = len(self.asked) > self.more
        return Header(kind=MessageKind.END if self.over else MessageKind.REPLY, version=len(self.asked))


def worker(more, monkeypatch):
    monkeypatch.setattr(surviving_push_pull, "SurvivingWorkerTransport", FakeTransport)
    survival = SimpleNamespace(ends=None)
    mesh, metrics = SimpleNamespace(replicas=0, survival=survival), RunMetrics(2)
    context = SimpleNamespace(params=np.zeros(3), mesh=mesh, metrics=metrics, more=more)
    return SurvivingPushPullWorker(context, SimpleNamespace(own=np.zeros(3))), survival


def test_it_asks_until_the_run_is_over_and_then_no_more(monkeypatch):
    one, survival = worker(1, monkeypatch)
    assert not survival.ends() and survival.ends() and survival.ends()
    one.finish()
    assert one.transport.asked == [MessageKind.DONE] * 2 and one.version == 2


def test_who_leaves_early_does_not_take_more(monkeypatch):
    one, _ = worker(2, monkeypatch)
    one.finish()
    assert one.transport.asked == [MessageKind.DONE] * 3
