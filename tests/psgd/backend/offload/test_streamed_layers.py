"""Parameters that stream through two slots of a played GPU: the bits of a run without, and no race."""

import numpy as np
import pytest
from harness.offload import MODELS, STEPS, host_steps, offloaded_steps
from harness.played_bus import PlayedBus, Race

from psgd.backend.offload.streamed_layers import StreamedLayers
from psgd.nn.gates import apart
from psgd.optim import rules


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("rule", [rules.sgd(), rules.adam()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_steps_are_the_hosts_bit_for_bit(model, rule, clip):
    bus = PlayedBus()
    got = offloaded_steps(StreamedLayers, bus, MODELS[model], rule, clip)
    for one, other in zip(host_steps(MODELS[model], rule, clip), got, strict=True):
        np.testing.assert_array_equal(one, other)
    layers = apart.parts(MODELS[model]())
    slots = min(2, len(layers))
    assert bus.bytes_on_device == 4 * slots * (
        max(each.size for each in layers) + max(len(each.own) for each in layers)
    )


def test_each_layer_crosses_the_bus_twice_but_for_the_last_two():
    bus = PlayedBus(3)
    offloaded_steps(StreamedLayers, bus, MODELS["mlp"], rules.sgd(), 0.0, evaluates=False)
    layers = apart.parts(MODELS["mlp"]())
    size = sum(each.size for each in layers)
    assert bus.bytes_up == 4 * STEPS * (2 * size - layers[-1].size - layers[-2].size)
    assert bus.bytes_down == 4 * STEPS * size


@pytest.mark.parametrize("model", MODELS)
def test_large_layers_go_in_pieces(monkeypatch, model):
    monkeypatch.setattr("psgd.backend.offload.bus.PIECE", 48)
    bus = PlayedBus(4)
    got = offloaded_steps(StreamedLayers, bus, MODELS[model], rules.adam(), 0.0)
    for one, other in zip(host_steps(MODELS[model], rules.adam(), 0.0), got, strict=True):
        np.testing.assert_array_equal(one, other)


class NeverHolds(PlayedBus):
    def hold(self, moment):
        pass


class CopiesAtOnce(PlayedBus):
    def up(self, to, source, after):
        return super().up(to, source, None)


class NeverWaits(PlayedBus):
    def learn(self, stream, clock):
        if stream != "host":
            super().learn(stream, clock)


@pytest.mark.parametrize("bus", [NeverHolds, CopiesAtOnce, NeverWaits])
def test_the_witness_sees_what_is_left_out(bus):
    with pytest.raises(Race):
        offloaded_steps(StreamedLayers, bus(), MODELS["mlp"], rules.adam(), 0.0)
