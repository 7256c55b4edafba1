"""A worker with servers: what it says in its headers and hears in the answers, with a transport that is a script."""

import numpy as np
import pytest

from psgd.checkpoint.requests import SAVE, SAVE_AND_STOP
from psgd.metrics.run_metrics import RunMetrics
from psgd.server.wire import Header, MessageKind
from psgd.worker.push_pull import PushPullWorker


class Script:
    """Answers each exchange with the next header, and remembers what was asked."""

    worker, workers, bytes_sent, bytes_received = 0, 2, 0, 0

    def __init__(self, *answers):
        self.header, self.asked = Header(), []
        self.answers = iter(answers)

    def exchange(self, kind, with_grads):
        names = ("push", "version", "samples", "position", "checkpoint_request")
        self.asked.append((kind, with_grads, *(getattr(self.header, name) for name in names)))
        return next(self.answers)

    def tell(self, kind):
        self.asked.append((kind, self.header.accuracy, self.header.loss))


class Context:
    params = np.ones(4)
    metrics = RunMetrics(2)


def worker_of(*answers):
    transport = Script(Header(), *answers)
    worker = PushPullWorker(Context, transport, np.zeros(4))
    worker.start()
    del transport.asked[:]
    return worker, transport


def test_each_push_says_where_this_worker_stands():
    worker, transport = worker_of(Header(version=5), Header(version=6), Header(version=7))
    worker.step(3, 0.5)
    worker.step(0, 0.5)
    worker.report(0.75, 2.0)
    worker.finish()
    push, report, done = MessageKind.PUSH, MessageKind.REPORT, MessageKind.DONE
    assert transport.asked[:3] == [(push, True, 1, 0, 3, 3, 0), (push, False, 2, 5, 0, 3, 0), (report, 0.75, 2.0)]
    assert transport.asked[3][:2] == (done, False) and worker.version == 7
    assert transport.header.waited_s == worker.waited_s
    assert worker._numbers.of_worker(0) == {"worker": 0, "sent": 2, "acknowledged": 2}


@pytest.mark.parametrize(("stop", "leaving"), [(False, False), (True, False), (True, True)])
def test_a_checkpoint_ends_a_step_once(stop, leaving):
    told = {"checkpoints": 1, "checkpoint_version": 4, "stop": stop, "leaving": leaving}
    worker, _ = worker_of(Header(), Header(**told), Header(**told))
    seen = []
    for _ in range(3):
        worker.step(1, 0.0)
        seen.append(worker.checkpoint.reached)
    assert seen == [False, True, False]
    assert (worker.stop, worker.checkpoint.step, worker.checkpoint.stopping) == (stop, 4, leaving)


def test_a_request_is_passed_on_until_a_checkpoint_answers_it():
    answers = [Header(checkpoint_request=SAVE), Header(), Header(checkpoints=1), Header(checkpoints=1)]
    worker, transport = worker_of(*answers)
    for _ in answers:
        worker.step(1, 0.0)
    assert [asked[-1] for asked in transport.asked] == [0, SAVE, SAVE, 0]


def test_a_request_to_stop_is_kept_until_all_stop():
    answers = [Header(checkpoints=1), Header(checkpoints=2, leaving=True), Header(checkpoints=2, leaving=True)]
    worker, transport = worker_of(*answers)
    worker.checkpoint.ask(True)
    for _ in answers:
        worker.step(1, 0.0)
    assert [asked[-1] for asked in transport.asked] == [SAVE_AND_STOP, SAVE_AND_STOP, 0]
