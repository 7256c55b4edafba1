"""Gradients and evaluations of a PyTorch module on a GPU are those of the host; `psgd train` trains it there."""

import json
import subprocess
import sys

import numpy as np
import pytest
from harness.device import cupy

from psgd import torch as psgd_torch
from psgd.config import configure
from psgd.data import load
from psgd.data.normalization import validate

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.gpu


def net(dtype=torch.float32, more=()):
    torch.manual_seed(2)
    parts = [nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), *more, nn.Linear(12, 10)]
    return nn.Sequential(*parts).to(dtype)


def backends(dtype=torch.float32, keep=True, batch=30):
    """One on the host and one on the GPU, with equal modules."""
    cupy()
    from psgd.training.torch_backend import TorchBackend
    from psgd.training.torch_cuda_backend import TorchCudaBackend

    digits, loss = load("digits"), nn.functional.cross_entropy
    statistics = validate(digits)
    here, there = psgd_torch.wrap(net(dtype)), psgd_torch.wrap(net(dtype)).to("cuda")
    return (
        (here, TorchBackend(here, loss, digits, statistics, batch)),
        (there, TorchCudaBackend(there, loss, digits, statistics, batch, keep)),
    )


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_the_hosts(keep, dtype):
    torch.set_num_threads(1)
    (here, plain), (there, far) = backends(dtype, keep)
    far.prepare(there.params)
    losses, expected = [], []
    for step in range(300):  # the ring of rows is used twice
        rows = (np.arange(30 if step % 7 else 11) + 13 * step) % 1497
        losses.append(far.gradient(rows))
        if step % 50 == 0:
            expected.append((step, plain.gradient(rows)))
            np.testing.assert_allclose(there.grads.get(), here.grads, rtol=1e-4, atol=1e-6)
        else:
            plain.gradient(rows)
    for step, value in expected:
        assert float(losses[step]) == pytest.approx(value, rel=1e-5)
    assert far.evaluate(0, 1) == pytest.approx(plain.evaluate(0, 1), rel=1e-5)
    parts = [far.evaluate(part, 2) for part in range(2)]
    assert sum(each[0] for each in parts) == far.evaluate(0, 1)[0]


def test_before_the_clock_starts_nothing_changes():
    _, (there, far) = backends()
    module = there.module
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state = torch.cuda.get_rng_state()
    far.prepare(there.params)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert not there.grads.any() and module.training


def test_what_is_wrong_with_the_samples_reaches_the_gradient():
    *_, (there, far) = backends()
    assert np.isnan(float(far.gradient(np.arange(5), touch=lambda x: x.fill(np.nan))))
    assert np.isnan(there.grads.get()).any()


def test_what_a_step_draws_depends_on_seed_worker_epoch_and_step_alone():
    from psgd.training.torch_module import TorchModel

    cupy()
    digits = load("digits")
    model = TorchModel(net(more=[nn.Dropout(0.5)]), None)
    vector = model.vector(configure(device="cuda"), serves=False)
    assert isinstance(vector, cupy().ndarray)
    backend = model.backend(configure(batch_size=20, device="cuda"), digits, validate(digits))
    model.begin(0, 0, 0, 0)
    first = float(backend.gradient(np.arange(20)))
    torch.rand(7, device="cuda")
    model.begin(0, 0, 0, 0)
    assert float(backend.gradient(np.arange(20))) == first
    model.begin(0, 0, 0, 1)
    assert float(backend.gradient(np.arange(20))) != first


def test_a_server_leaves_it_on_the_host():
    from psgd.training.torch_module import TorchModel

    vector = TorchModel(net(), None).vector(configure(device="cuda"), serves=True)
    assert isinstance(vector, np.ndarray)


FILE = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))

def there():
    return make().cuda()
"""
CASES = {
    "single": "--workers 1 --servers 0",
    "single-cpu-data": "--workers 1 --servers 0 --data-device cpu",
    "sync": "--scale-lr",
    "async": "",
    "ssp": "--scale-lr",
    "softsync": "",
    "allreduce": "--scale-lr",
    "averaging": "",
    "easgd": "",
    "hogwild": "",
    "decentralized": "",
    "allreduce-compress": "--scale-lr --compress threshold",
    "allreduce-there": "--scale-lr",
}


def command(folder, function, *options):
    (folder / "net.py").write_text(FILE)
    model = f"{folder}/net.py:{function}"
    return [sys.executable, "-m", "psgd.launch", "train", "--json", "--epochs", "6", "--model", model, *options]


@pytest.mark.parametrize("case", CASES)
def test_psgd_train_learns(case, tmp_path):
    cupy()
    strategy = "sync" if case.startswith("single") else case.split("-")[0]
    function = "there" if case.endswith("there") else "make"
    options = ("--device", "cuda", "--strategy", strategy, "--save", str(tmp_path / "w.pt"), *CASES[case].split())
    done = subprocess.run(
        command(tmp_path, function, *options), capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.strip().splitlines()[-1])
    assert result["device"] == "cuda" and result["samples"] == 6 * result["train_samples"]
    assert result["test_accuracy"] >= 0.9 and 0 < result["train_loss"] < 0.6
    state = torch.load(tmp_path / "w.pt", weights_only=True)
    assert all(value.device.type == "cpu" for value in state.values()) and state["2.num_batches_tracked"] > 0


def test_a_module_on_a_gpu_with_device_cpu_is_refused(tmp_path):
    cupy()
    done = subprocess.run(
        command(tmp_path, "there", "--workers", "1", "--servers", "0"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr[-3000:]
    assert "expected a module on the CPU, got one on cuda:0: use --device cuda" in done.stderr
