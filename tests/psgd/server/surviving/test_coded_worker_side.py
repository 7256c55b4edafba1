"""What a server has told is heard behind an answer, be it a payload or whole."""

import numpy as np

from psgd.server.surviving.coded_worker_side import CodedWorkerTransport
from psgd.server.transports.compressed_worker_transport import CompressedWorkerTransport
from psgd.server.wire import Header, MessageKind


def test_it_hears_behind_the_answer(monkeypatch):
    made, happened = CodedWorkerTransport.__new__(CodedWorkerTransport), []

    class Survival:
        def receive(self, words):
            happened.append(words.tolist())

    class Mesh:
        survival = Survival()

    def exchange(self, kind, with_grads, with_params=True):
        happened.append("answer")
        return Header(kind=int(MessageKind.PUSH), view=1, checkpoints=3)

    made._listen(Mesh())
    monkeypatch.setattr(CompressedWorkerTransport, "exchange", exchange)
    monkeypatch.setattr(CodedWorkerTransport, "_hear", lambda self: np.array([1, 7]))
    made.exchange(int(MessageKind.PUSH), True)
    made.exchange(int(MessageKind.PUSH), True)
    assert happened == ["answer", [7], "answer"] and made.checkpoints == 3 and not made.over
