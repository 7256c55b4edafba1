import pytest

from psgd.launch.bench.peers.torch_options import TorchOptions


def test_the_slow_worker_sleeps_after_its_gradient_and_the_others_do_not(monkeypatch):
    pytest.importorskip("torch")
    from psgd.launch.bench.peers import torch_stragglers
    from psgd.runtime import faults

    slept = []
    monkeypatch.setattr(faults.time, "sleep", slept.append)
    options = TorchOptions("torch-hogwild", "digits", "mlp", 1, 8, 0.1, 0, 2, inject="slow:1:3,compute:0.5")
    for worker in (0, 1):
        sleeper = torch_stragglers.Sleeper(options, worker)
        sleeper.begin()
        sleeper.computed()
    assert sum(slept) == pytest.approx(0.5 + 3 * 0.5, rel=0.1)
