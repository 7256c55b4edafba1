"""How long an offloaded step takes in counted time: little more than the longest of its parts."""

import numpy as np
import pytest
from harness.offload import local
from harness.timed_bus import TimedBus, TimedUpdates, timed

from psgd.backend.offload.kept_layers import KeptLayers
from psgd.backend.offload.streamed_layers import StreamedLayers
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.optim import rules

LAYERS, WIDTH, STEPS, WARM = 24, 8, 12, 4
REGIMES = {  # time of a layer's forward pass, of its copy one way, of its update
    "compute": (1.0, 0.8, 1.5),
    "bus": (1.0, 6.0, 2.0),
    "update": (1.0, 0.8, 6.0),
    "compute and update": (1.0, 0.8, 3.0),
}


def model():
    return Model([Linear(WIDTH) for _ in range(LAYERS)], (WIDTH,))


def run(place, forward, copy, update):
    """Time of a step once it is the same each time, what each part of it takes, and the final parameters."""
    size = len(model().ready_ranges[0])
    bus = TimedBus(copy / size, forward)
    updates = TimedUpdates(bus, update / size)
    layers = place(timed(model(), bus), bus, updates)
    params = model().init(1)
    worker = local(model(), params, rules.adam(), 0.0, updates)
    layers.bind(params, worker.grads)
    ctx, rng, ends = layers.model.context(4), np.random.default_rng(0), []
    for step in range(STEPS):
        layers.begin(worker.overlap(4))
        layers.model.gradient(ctx, rng.normal(size=(4, WIDTH)).astype(np.float32), np.zeros(4, np.int64), layers.ready)
        ends.append(bus.free["compute"])
        layers.finish()
        worker.step(4, 0.0)
        if step == WARM:
            busy = dict(bus.busy)
    parts = {name: (bus.busy[name] - busy[name]) / (STEPS - WARM - 1) for name in busy}
    worker.finish()
    return (ends[-1] - ends[WARM]) / (STEPS - WARM - 1), parts | {"update": update * LAYERS}, params


def late(layers, bus, updates):
    return KeptLayers(layers, bus, updates, behind=1)


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("place", [KeptLayers, late, StreamedLayers], ids=["optimizer", "late", "parameters"])
def test_a_step_takes_little_more_than_its_longest_part(place, regime):
    forward, copy, update = REGIMES[regime]
    step, parts, params = run(place, forward, copy, update)
    assert parts["compute"] == 3 * LAYERS * forward  # no layer is computed twice
    longest = max(parts.values())
    most = 1.15 * longest
    if regime == "bus" and place is not StreamedLayers:  # the way down has nothing to carry while forward runs
        most = longest + LAYERS * forward + 2 * copy + update
    assert longest - 1e-6 <= step <= most
    _, _, other = run(place, *REGIMES["compute"])
    np.testing.assert_array_equal(params, other)  # times change no bit


def test_where_compute_is_longest_it_is_nearly_free():
    step, _, _ = run(KeptLayers, *REGIMES["compute"])
    assert step <= 1.05 * 3 * LAYERS
