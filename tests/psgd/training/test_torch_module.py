"""A PyTorch module as what a run trains: where it starts, what it draws, what it saves, and that a trial leaves it."""

import numpy as np
import pytest

from psgd import torch as psgd_torch
from psgd.config import configure
from psgd.data import load
from psgd.data.normalization import validate
from psgd.kernels.errors import UsageError

torch = pytest.importorskip("torch")
from psgd.training.torch_module import TorchModel, UncutModule, cross_entropy  # noqa: E402 -- where PyTorch is

nn = torch.nn


def module():
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10), nn.Dropout(0.5))


def test_the_vector_is_the_modules_memory():
    inner = module()
    model = TorchModel(inner, None)
    vector = model.vector(configure(), serves=False)
    vector[:] = 3
    assert inner[1].weight.detach().numpy().min() == 3
    assert model.connected(vector) is model.wrapped
    wrapped = psgd_torch.wrap(module(), buffers="local")
    assert TorchModel(wrapped, None).wrapped is wrapped


def test_what_a_step_draws_depends_on_seed_worker_epoch_and_step_alone():
    inner = module()
    digits = load("digits")
    model = TorchModel(inner, None)
    backend = model.backend(configure(batch_size=20), digits, validate(digits))
    losses = {}
    for key in ((0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)):
        model.begin(*key)
        losses[key] = backend.gradient(np.arange(20))
        torch.rand(7)
        model.begin(*key)
        assert backend.gradient(np.arange(20)) == losses[key]
    assert len(set(losses.values())) == 5


def test_a_trial_leaves_everything_as_it_was():
    inner = module()
    inner[3].eval()
    model = TorchModel(inner, None)
    before = {name: tensor.clone() for name, tensor in inner.state_dict().items()}
    state = torch.random.get_rng_state()
    model.check((1, 8, 8), 10)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert [part.training for part in inner] == [True, True, True, False]
    assert all(torch.equal(tensor, before[name]) for name, tensor in inner.state_dict().items())
    with pytest.raises(UsageError, match=r"scores of shape \(n, 11\)"):
        model.check((1, 8, 8), 11)


def test_reduced_precision_has_a_loss_in_float32():
    scores = torch.randn(6, 10, generator=torch.Generator().manual_seed(2)).bfloat16()
    labels = torch.arange(6)
    assert cross_entropy(scores, labels).dtype == torch.float32
    assert cross_entropy(scores.double(), labels).dtype == torch.float64
    wanted = nn.functional.cross_entropy(scores.double(), labels)
    assert cross_entropy(scores, labels).item() == pytest.approx(wanted.item(), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("suffix", [".npz", ".pt"])
def test_saved_weights_are_the_whole_state_dict(tmp_path, dtype, suffix):
    inner = module().to(dtype)
    inner[1].bias.requires_grad_(False)
    model, path = TorchModel(inner, None), tmp_path / f"w{suffix}"
    model.save(path, model.vector(configure(), serves=False))
    if suffix == ".pt":
        state = torch.load(path, weights_only=True)
        assert {tensor.dtype for tensor in state.values()} == {dtype, torch.int64}
    else:
        with np.load(path) as found:
            state = {name: torch.as_tensor(found[name]) for name in found.files}
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10), nn.Dropout(0.5)).to(dtype)
    other.load_state_dict(state)
    for name, tensor in inner.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_module_that_is_to_be_cut_is_described_and_not_wrapped(device):
    with torch.device(device):
        inner = module()
    inner[1].bias.requires_grad = False
    whole = UncutModule(inner, None, (1, 8, 8))
    assert [p.name for p in whole.layout.parameters] == ["1.weight", "2.weight", "2.bias"]
    whole.check((1, 8, 8), 10)
    with pytest.raises(UsageError, match=r"scores of shape \(n, 11\)"):
        whole.check((1, 8, 8), 11)
    if device == "cpu":
        with pytest.raises(UsageError, match="not wrapped"):
            UncutModule(psgd_torch.wrap(inner), None)
    lazy = nn.Sequential(nn.Flatten(), nn.LazyLinear(10))
    assert UncutModule(lazy, None, (1, 8, 8)).layout.parameters[0].shape == (10, 64)


@pytest.mark.parametrize("kind", [TorchModel, UncutModule])
def test_only_what_has_one_value_a_channel_needs_several_samples(kind):
    convolved = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(108, 10)]
    assert kind(nn.Sequential(*convolved), None, (1, 8, 8)).needs_several() is None
    inner = nn.Sequential(*convolved, nn.BatchNorm1d(10))
    model = kind(inner, None, (1, 8, 8))
    assert model.needs_several() == "layer 4 (BatchNorm1d)"
    assert inner[4].training and not inner[4].num_batches_tracked and not inner[4]._forward_pre_hooks
    inner[4].eval()
    assert model.needs_several() is None
