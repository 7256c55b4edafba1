"""Gradients and losses on a GPU, as a graph and step by step, against the host's."""

import numpy as np
import pytest
from harness.device import cupy

from psgd.backend.host import HostBackend
from psgd.data import load
from psgd.data.normalization import AS_THEY_ARE, measure
from psgd.nn.layers.dropout import Dropout
from psgd.nn.layers.lstm import LSTM
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.models import build
from psgd.nn.reshape import ChannelsLast, RowTokens

pytestmark = pytest.mark.gpu
BATCH = 16


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("name", ["softmax", "mlp", "cnn", "lecture-cnn", "resmlp"])
def test_many_steps_are_the_hosts(name, keep):
    xp = cupy()
    from psgd.backend.cuda import CudaBackend

    dataset = load("digits")
    statistics = measure(dataset.train)
    model, twin = (build(name, dataset.sample_shape, dataset.classes, hidden=24) for _ in range(2))
    params = model.init(3)
    host, device = (
        HostBackend(model, dataset, statistics, BATCH),
        CudaBackend(twin, dataset, statistics, BATCH, keep),
    )
    theirs = xp.asarray(params)
    host.prepare(params)
    device.prepare(theirs)
    grads, device_grads = np.zeros_like(params), xp.full_like(theirs, np.nan)
    host.bind(params, grads)
    device.bind(theirs, device_grads)
    rng = np.random.default_rng(0)
    total, sum_ = 0.0, 0.0
    for step in range(600):  # more than the ring of indices has slots; no wait between most of them
        n = BATCH if step % 7 else 5
        indices = rng.integers(0, dataset.train.samples, n)
        loss = device.gradient(indices)
        sum_ += n * loss
        if step % 50 < 2 or step > 597:
            total_before = float(sum_)
            expected = host.gradient(indices)
            np.testing.assert_allclose(device_grads.get(), grads, rtol=1e-4, atol=1e-5)
            assert float(loss) == pytest.approx(expected, rel=1e-4)
            assert float(sum_) == total_before
        total += n * float(loss) if step % 3 == 0 else 0.0
    assert np.isfinite(total)
    seen = []
    device.gradient(indices, touch=lambda x: (seen.append(x.shape), x.fill(np.nan)))
    assert seen == [(n, x_size(dataset))]
    assert np.isnan(device_grads.get()).any()
    right, loss_sum = device.evaluate(0, 1)
    assert right == host.evaluate(0, 1)[0]
    assert loss_sum == pytest.approx(host.evaluate(0, 1)[1], rel=1e-4)


def x_size(dataset):
    return int(np.prod(dataset.sample_shape))


@pytest.mark.parametrize("keep", [True, False])
def test_a_graph_drops_what_the_host_drops_at_each_step(keep):
    xp = cupy()
    from psgd.backend.cuda import CudaBackend

    dataset = load("digits")
    statistics = measure(dataset.train)
    layers = [ChannelsLast(), RowTokens(), Dropout(0.3), LSTM(12), Dropout(0.4), Linear(dataset.classes)]
    model, twin = (Model(layers, dataset.sample_shape) for _ in range(2))
    params = model.init(3)
    host = HostBackend(model, dataset, statistics, BATCH)
    device = CudaBackend(twin, dataset, statistics, BATCH, keep)
    theirs = xp.asarray(params)
    host.prepare(params)
    device.prepare(theirs)
    grads, device_grads = np.zeros_like(params), xp.zeros_like(theirs)
    host.bind(params, grads)
    device.bind(theirs, device_grads)
    rng = np.random.default_rng(0)
    losses = []
    for step in range(40):
        indices = np.arange(BATCH) if step % 2 else rng.integers(0, dataset.train.samples, BATCH)
        for backend in (host, device):
            backend.begin(5, 1, step)
        losses.append(host.gradient(indices))
        assert float(device.gradient(indices)) == pytest.approx(losses[-1], rel=1e-4)
        np.testing.assert_allclose(device_grads.get(), grads, rtol=1e-3, atol=1e-5)
    assert len(set(losses[1::2])) == 20  # the same samples, another draw each time
    assert device.evaluate(0, 1)[0] == host.evaluate(0, 1)[0]


@pytest.mark.parametrize("keep", [True, False])
def test_text_is_the_hosts(keep):
    xp = cupy()
    from psgd.backend.cuda import CudaBackend

    dataset = load("genesis", context=16)
    model, twin = (build("gpt", (16,), 256, tokens=True, layers=2, width=24, heads=3) for _ in range(2))
    params = model.init(3)
    host = HostBackend(model, dataset, AS_THEY_ARE, BATCH)
    device = CudaBackend(twin, dataset, AS_THEY_ARE, BATCH, keep)
    theirs = xp.asarray(params)
    host.prepare(params)
    device.prepare(theirs)
    grads, device_grads = np.zeros_like(params), xp.full_like(theirs, np.nan)
    host.bind(params, grads)
    device.bind(theirs, device_grads)
    rng = np.random.default_rng(0)
    for step in range(20):
        indices = rng.integers(0, dataset.train.samples, BATCH if step % 3 else 5)
        loss = host.gradient(indices)
        assert float(device.gradient(indices)) == pytest.approx(loss, rel=1e-4)
        np.testing.assert_allclose(device_grads.get(), grads, rtol=1e-3, atol=1e-5)
    (right, loss_sum), (expected, expected_sum) = device.evaluate(0, 7), host.evaluate(0, 1)
    assert 0 < right < expected < dataset.test.samples
    assert loss_sum < expected_sum
    assert device.evaluate(0, 1)[1] == pytest.approx(expected_sum, rel=1e-4)
