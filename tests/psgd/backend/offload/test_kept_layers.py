"""The optimizer on the host, with a played GPU: the bits of a run without, and nothing that could be a race."""

import numpy as np
import pytest
from harness.offload import MODELS, host_steps, late_steps, offloaded_steps
from harness.played_bus import PlayedBus, Race

from psgd.backend.offload.kept_layers import KeptLayers
from psgd.optim import rules
from psgd.optim.host_updates import HostUpdates


def kept(behind=0, by_parts=True):
    def make(model, bus, updates):
        return KeptLayers(model, bus, updates if by_parts else None, behind)

    return make


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("rule", [rules.sgd(0.1), rules.nesterov(), rules.adam()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_steps_are_the_hosts_bit_for_bit(model, rule, clip):
    bus = PlayedBus()
    got = offloaded_steps(kept(), bus, MODELS[model], rule, clip)
    expected = host_steps(MODELS[model], rule, clip)
    for one, other in zip(expected, got, strict=True):
        np.testing.assert_array_equal(one, other)
    size = MODELS[model]().layout.size * 4
    assert bus.bytes_on_device == 2 * size


def test_who_takes_whole_steps_gets_all_parameters_copied():
    bus = PlayedBus(1)
    got = offloaded_steps(kept(by_parts=False), bus, MODELS["mlp"], rules.adam(), 0.0, by_parts=False)
    for one, other in zip(host_steps(MODELS["mlp"], rules.adam(), 0.0), got, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_one_step_behind_is_exactly_one(model, clip):
    got = offloaded_steps(kept(behind=1), PlayedBus(2), MODELS[model], rules.momentum(), clip, evaluates=False)
    expected = late_steps(MODELS[model], rules.momentum(), clip)
    for one, other in zip(expected, got, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(expected[-1], host_steps(MODELS[model], rules.momentum(), clip, evaluates=False)[-1])


@pytest.mark.parametrize("model", MODELS)
def test_large_layers_go_in_pieces(monkeypatch, model):
    monkeypatch.setattr("psgd.backend.offload.bus.PIECE", 48)
    bus = PlayedBus(4)
    got = offloaded_steps(kept(), bus, MODELS[model], rules.adam(), 0.0)
    for one, other in zip(host_steps(MODELS[model], rules.adam(), 0.0), got, strict=True):
        np.testing.assert_array_equal(one, other)


class NeverHolds(PlayedBus):
    def hold(self, moment):
        pass


class CopiesAtOnce(PlayedBus):
    def down(self, to, source, after):
        return super().down(to, source, None)


class NeverWaits(PlayedBus):
    def learn(self, stream, clock):
        if stream != "host":
            super().learn(stream, clock)


@pytest.mark.parametrize("bus", [NeverHolds, CopiesAtOnce, NeverWaits])
@pytest.mark.parametrize("behind", [0, 1])
def test_the_witness_sees_what_is_left_out(bus, behind):
    with pytest.raises(Race):
        offloaded_steps(kept(behind), bus(), MODELS["mlp"], rules.adam(), 0.0)


def test_an_update_that_fails_is_raised_in_the_loop():
    def update(params, grad, state, lr, scale, step):
        if params.size:
            raise RuntimeError("this rule fails")

    broken = rules.sgd()._replace(update=update, name="broken")
    with pytest.raises(RuntimeError, match="this rule fails"):
        offloaded_steps(kept(), PlayedBus(), MODELS["mlp"], broken, 0.0)
    assert HostUpdates(0).wait() is None  # of nothing that was opened
