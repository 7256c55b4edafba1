"""Gradients and evaluations of a PyTorch module are what autograd gives, with the module's own modes respected."""

import numpy as np
import pytest

from psgd import torch as psgd_torch
from psgd.data import load
from psgd.data.batches import Batches
from psgd.data.normalization import validate

torch = pytest.importorskip("torch")
from psgd.training.torch_backend import TorchBackend, evaluating, untouched  # noqa: E402 -- where PyTorch is

nn = torch.nn
loss = nn.functional.cross_entropy


def parts(dtype=torch.float32, batch=30):
    torch.manual_seed(2)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10)).to(dtype)
    digits = load("digits")
    statistics = validate(digits)
    model = psgd_torch.wrap(module)
    return module, model, digits, statistics, TorchBackend(model, loss, digits, statistics, batch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_gradient_is_autograds(dtype):
    module, _, digits, statistics, backend = parts(dtype)
    for rows in (np.arange(30), np.arange(100, 107)):
        found = backend.gradient(rows)
        grads = [p.grad.clone() for p in module.parameters()]
        module.zero_grad()
        wide = np.float64 if dtype == torch.float64 else np.float32
        x, y = Batches(digits.train, statistics, 30, wide).fetch(rows)
        wanted = loss(module(torch.from_numpy(x).to(dtype)), torch.from_numpy(y))
        wanted.backward()
        assert found == wanted.item()
        assert all(torch.equal(p.grad, grad) for p, grad in zip(module.parameters(), grads, strict=True))


def test_what_is_wrong_with_the_samples_reaches_the_gradient():
    *_, backend = parts()
    assert np.isnan(backend.gradient(np.arange(5), touch=lambda x: x.fill(np.nan)))


def test_before_the_clock_starts_nothing_changes():
    module, model, _, _, backend = parts()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    backend.prepare(model.params)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert not model.grads.any() and module.training


def test_an_evaluation_is_in_its_mode_and_on_the_bound_vector():
    module, model, digits, statistics, backend = parts()
    module[2].running_mean.fill_(0.3)
    x, y = Batches(digits.test, statistics, 300).ordered(0, 300)
    module.eval()
    with torch.no_grad():
        scores = module(torch.from_numpy(x))
    wanted = int((scores.argmax(1) == torch.from_numpy(y)).sum()), loss(scores, torch.from_numpy(y)).item() * 300
    module.train()
    module[1].eval()
    parted = [backend.evaluate(part, 2) for part in range(2)]
    assert (sum(each[0] for each in parted), sum(each[1] for each in parted)) == pytest.approx(wanted)
    assert [part.training for part in module] == [True, False, True, True, True]
    mine, zeros = model.params, np.zeros_like(model.params)
    backend.bind(zeros, np.zeros_like(zeros))
    assert backend.evaluate(0, 1)[1] == pytest.approx(300 * np.log(10))
    backend.bind(mine, np.zeros_like(zeros))
    assert backend.evaluate(0, 1) == pytest.approx(wanted)


def test_modes_and_buffers_come_back_after_errors_too():
    module, *_ = parts()

    def fail():
        assert not any(part.training for part in module)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), evaluating(module):
        fail()
    assert all(part.training for part in module)
    with untouched(module):
        module[2].running_var.fill_(9)
    assert module[2].running_var.max() == 1


def test_an_evaluation_tells_labels_and_predictions():
    _, _, digits, _, backend = parts()
    seen = []
    backend.tally = lambda labels, predicted: seen.append((labels.copy(), predicted))
    right, _ = backend.evaluate(0, 1)
    labels, predicted = (np.concatenate(each) for each in zip(*seen, strict=True))
    np.testing.assert_array_equal(labels, digits.test.y)
    assert right == (labels == predicted).sum() < len(labels)


def test_a_gradient_that_is_computed_again_is_the_same_and_counts_once_in_the_buffers():
    module, model, _, _, backend = parts()
    rows = np.arange(30)
    backend.gradient(rows)
    right, buffers = model.grads.copy(), [buffer.clone() for buffer in module.buffers()]
    model.grads.fill(7)
    module.zero_grad()  # as a sum over all workers has left it, and the module's own method
    backend.again(rows)
    np.testing.assert_array_equal(model.grads, right)
    assert all(torch.equal(*pair) for pair in zip(module.buffers(), buffers, strict=True))
