"""What a PyTorch peer does besides on a GPU, and leaves alone on the host."""

import copy

import pytest

torch = pytest.importorskip("torch")

from psgd.launch.bench.peers import torch_cuda  # noqa: E402
from psgd.launch.bench.peers.torch_job import TrainJob  # noqa: E402
from psgd.launch.bench.peers.torch_options import TorchOptions  # noqa: E402


def made(device):
    options = TorchOptions("torch", "digits", "mlp", 1, 8, 0.5, 0, 1, device=device)
    model, x, y = torch.nn.Linear(4, 3), torch.randn(20, 4), torch.arange(20) % 3
    return TrainJob(options, model, x, y, (x[:5], y[:5]), torch.zeros(1, 2), torch.zeros(0, 2), "")


def test_on_the_host_nothing_moves_and_nothing_is_warmed_up():
    job = made("cpu")
    before = copy.deepcopy(job.model.state_dict())
    assert torch_cuda.moved(job, 0) is job
    torch_cuda.warm_up(job.model, job)
    assert all(torch.equal(value, before[name]) for name, value in job.model.state_dict().items())


def test_the_optimizer_is_plain_sgd_at_the_rate():
    job = made("cpu")
    optimizer, weight = torch_cuda.sgd(job.model, job), job.model.weight.detach().clone()
    job.model(job.x).sum().backward()
    optimizer.step()
    torch.testing.assert_close(job.model.weight.detach(), weight - 0.5 * job.model.weight.grad)


@pytest.mark.gpu
def test_on_a_gpu_the_data_moves_and_warming_up_leaves_the_model():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    job = made("cuda")
    before = {name: value.cpu().clone() for name, value in job.model.state_dict().items()}
    here = torch_cuda.moved(job, 0)
    assert here.x.is_cuda and here.y.is_cuda and here.test[0].is_cuda
    assert all(torch.equal(value.cpu(), before[name]) for name, value in here.model.state_dict().items())
