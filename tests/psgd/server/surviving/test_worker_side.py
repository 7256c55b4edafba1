"""A worker reads what it was told up to the view of its answer, and nothing after the end."""

from types import SimpleNamespace

import numpy as np
import pytest

from psgd.server.surviving.worker_side import SurvivingWorkerTransport
from psgd.server.transports.worker_transport import MpiWorkerTransport
from psgd.server.wire import Header, MessageKind


@pytest.fixture
def transport(monkeypatch):
    made, heard = SurvivingWorkerTransport.__new__(SurvivingWorkerTransport), []
    made._view, made.over = 0, False
    made._mesh = SimpleNamespace(survival=SimpleNamespace(receive=lambda words: heard.append(words.tolist())))
    made.heard, made.mail = heard, []
    monkeypatch.setattr(MpiWorkerTransport, "exchange", lambda self, *arguments: self.answer)
    monkeypatch.setattr(SurvivingWorkerTransport, "_hear", lambda self: np.array(self.mail.pop(0)))
    return made


def answered(transport, kind, view):
    transport.answer = Header(kind=kind, view=view)
    return transport.exchange(MessageKind.PUSH, True)


def test_every_death_is_heard_of_once(transport):
    transport.mail = [[1, 5, 6], [2], [4, 9]]
    answered(transport, MessageKind.REPLY, 0)
    assert transport.heard == []
    assert answered(transport, MessageKind.REPLY, 2).view == 2
    assert transport.heard == [[5, 6], []]
    answered(transport, MessageKind.REPLY, 2)
    answered(transport, MessageKind.REPLY, 4)  # of the third it was not told: it was done then
    assert transport.heard[2:] == [[9]] and not transport.over


def test_nothing_is_to_be_done_after_the_end(transport):
    answered(transport, MessageKind.END, 3)
    assert transport.heard == [] and transport.over
