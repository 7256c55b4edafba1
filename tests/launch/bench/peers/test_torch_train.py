"""The PyTorch peers of `psgd bench train`: steps, evaluations within the time, and what a straggler does to each."""

import pytest

from psgd.launch.bench.peers import processes
from psgd.launch.bench.peers.torch_options import TorchOptions


@pytest.fixture(autouse=True)
def peers(monkeypatch):
    pytest.importorskip("torch")
    for name, value in processes.environment().items():
        monkeypatch.setenv(name, value)
    from psgd.launch.bench.peers import torch_train

    return torch_train


def test_steps_leave_no_worker_without_a_batch(peers):
    assert peers.steps_each(1497, 2, 64) == 12
    assert peers.steps_each(129, 2, 64) == 1  # the second of two workers has 64 samples only
    assert peers.steps_each(3, 4, 10) == 0


def test_one_process(peers):
    result = peers.run(TorchOptions("torch", "digits", "mlp", 2, 64, 0.1, 0, 1, "compute:0.002", True))
    (first, early), (last, final) = result["evaluations"]
    assert (result["steps"], result["samples"], result["test_accuracy"]) == (48, 2994, final)
    assert 0.048 <= first < last == result["seconds"]
    assert early > 0.5
    assert final > 0.8


@pytest.mark.parametrize("name", ["ddp", "torch-hogwild"])
@pytest.mark.alone
def test_a_straggler_holds_up_ddp_but_not_hogwild(peers, name):
    """Worker 1 takes 0.2 s for a gradient and worker 0, which evaluates, 0.02 s; an epoch has 3 steps of both."""
    result = peers.run(TorchOptions(name, "digits", "mlp", 2, 256, 0.2, 0, 2, "compute:0.02,slow:1:10", True))
    (first, _), (last, final) = result["evaluations"]
    assert (result["steps"], result["samples"], result["test_accuracy"]) == (6, 2994, final)
    assert last == result["seconds"] >= 1.2
    assert first >= 0.6 if name == "ddp" else first < 0.4 * last
    if name == "ddp":  # the mean gradient over both workers, in steps like those of one process with all samples
        alone = peers.run(TorchOptions("torch", "digits", "mlp", 2, 512, 0.2, 0, 1))
        assert final == pytest.approx(alone["test_accuracy"], abs=0.01)
