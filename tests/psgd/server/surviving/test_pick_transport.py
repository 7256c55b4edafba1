"""Which transport a server gets: the one that agrees with others, where there are others."""

from types import SimpleNamespace

import pytest

from psgd.server.surviving import pick_transport


@pytest.mark.parametrize(("servers", "expected"), [(1, "alone"), (2, "agreed")])
def test_only_several_servers_agree(monkeypatch, servers, expected):
    monkeypatch.setattr(pick_transport, "SurvivingServerTransport", lambda *args, **more: "alone")
    monkeypatch.setattr(pick_transport, "AgreedServerTransport", lambda *args, **more: "agreed")
    context = SimpleNamespace(mesh=SimpleNamespace(servers=servers), waiter=None, settings=0)
    assert pick_transport.transport(context, None, [], []) == expected
