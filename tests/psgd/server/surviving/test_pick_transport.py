"""Which transport a server gets: the one that agrees with others, where there are others, and that encodes."""

from types import SimpleNamespace

import pytest

from psgd.server.surviving import coded_server_side, pick_transport


class Made:
    def __init__(self, *args, inline, **more):
        self.inline, self.coded = inline, None

    def encodes(self, context, compression):
        self.coded = compression


@pytest.mark.parametrize("compression", [None, "onebit"])
@pytest.mark.parametrize("servers", [1, 2])
def test_only_several_servers_agree(monkeypatch, servers, compression):
    kinds = {"": pick_transport, "Coded": coded_server_side}
    for coded, module in kinds.items():
        alone = f"{coded or 'Surviving'}ServerTransport"
        for name in (alone, f"Agreed{coded}ServerTransport"):
            monkeypatch.setattr(module, name, type(name, (Made,), {}))
    monkeypatch.setattr(
        coded_server_side,
        "AgreedCodedServerTransport",
        type("AgreedCodedServerTransport", (coded_server_side.CodedServerTransport,), {}),
    )
    context = SimpleNamespace(mesh=SimpleNamespace(servers=servers), waiter=None, settings=0, compression=compression)
    made = pick_transport.transport(context, None, [], [])
    expected = {
        (1, None): "SurvivingServerTransport",
        (2, None): "AgreedServerTransport",
        (1, "onebit"): "CodedServerTransport",
        (2, "onebit"): "AgreedCodedServerTransport",
    }
    assert type(made).__name__ == expected[servers, compression]
    assert made.coded == compression and made.inline == (compression is None)
