"""Stages of a `nn.Sequential` on GPUs, or on a simulated one: the bits of the module alone, in microbatches."""

from contextlib import contextmanager

import numpy as np
import pytest
from harness.device import cupy
from harness.fake_gpu import FakeGpu

import psgd
from psgd import collectives
from psgd.kernels.errors import UsageError
from psgd.parallel import pipeline as module_of_pipelines
from psgd.parallel.schedules import catalog

torch = pytest.importorskip("torch")
nn = torch.nn
CUTS = {1: (), 2: (3,), 3: (2, 5)}
STEPS = (8, 8, 7, 8, 1, 8)
PLACES = (pytest.param("simulated"), pytest.param("gpu", marks=pytest.mark.gpu))


@contextmanager
def device_of(place, comm, reaches=True):
    """The device's arrays, and where PyTorch has it; without `reaches` stages are not reached by each other's GPUs."""
    with pytest.MonkeyPatch.context() as patch:
        if place == "gpu":
            xp = cupy()
            from psgd.collectives.device.pick_gpu import choose_device

            choose_device(comm)
            if not reaches:
                patch.setenv("PSGD_SHARED", "0")
            yield xp, torch.device("cuda", torch.cuda.current_device())
        else:
            patch.setattr(module_of_pipelines, "_gpu", lambda: FakeGpu(reaches))
            yield np, torch.device("cpu")
    comm.Barrier()


def make(seed=3):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(6, 12),
        nn.ReLU(inplace=True),
        nn.Linear(12, 9),
        nn.GELU(),
        nn.Linear(9, 11, bias=False),
        nn.LayerNorm(11),
        nn.Linear(11, 5),
    )


def samples(n, step):
    rng = np.random.default_rng([n, step])
    return rng.standard_normal((n, 2, 3)).astype(np.float32), rng.integers(0, 5, n)


def values(vector):
    return vector if isinstance(vector, np.ndarray) else vector.get()


def alone(module, x, y, size, descending):
    """Gradients by name, and the loss, of microbatches one after another on the module's device."""
    device, losses = next(module.parameters()).device, {}
    x, y = torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)
    module.zero_grad(set_to_none=False)
    order = range(-(-len(x) // size))
    for k in reversed(order) if descending else order:
        part = slice(k * size, (k + 1) * size)
        loss = nn.functional.cross_entropy(module(x[part]), y[part]) * (len(y[part]) / len(y))
        loss.backward()
        losses[k] = loss.item()
    return {name: p.grad.cpu().numpy() for name, p in module.named_parameters()}, sum(losses[k] for k in order)


def compare(comm, xp, device, schedule, microbatches):
    """Takes the same steps in stages and alone."""
    chunks = 2 if catalog.SCHEDULES[schedule].chunks else 1
    cuts = (2, 4, 6) if chunks == 2 else CUTS[comm.size]
    descending = catalog.make(schedule, comm.size, microbatches, chunks).gradient_order == "descending"
    whole = make().to(device)
    for p in whole.parameters():
        p.grad = torch.zeros_like(p)
    options = {"batch": 8, "microbatches": microbatches, "schedule": schedule, "device": "cuda"}
    with psgd.torch.pipeline(make(), comm, cuts=cuts, sample=(2, 3), **options) as stages:
        assert stages.device == device and isinstance(stages.params, xp.ndarray)
        assert all(p.device == device for p in stages.module.parameters()) and stages.pipeline.on_gpu
        for step, n in enumerate(STEPS):
            x, y = samples(n, step)
            wanted, loss = alone(whole, x, y, -(-8 // microbatches), descending)
            given = (x, y) if step % 2 else (xp.asarray(x), torch.from_numpy(y).to(device))
            assert stages.gradient(n, *given) == loss, step
            for name, view in stages.layout.views(values(stages.grads)).items():
                assert np.array_equal(view, wanted[name]), (step, name)
            stages.params[:] -= xp.float32(0.1) * stages.grads
            with torch.no_grad():
                for p in whole.parameters():
                    p.sub_(torch.tensor(np.float32(0.1)) * p.grad)
        x, y = samples(23, 9)
        right, loss = stages.evaluate(23, x, y)
        scores = whole(torch.from_numpy(x).to(device)).detach().cpu()
        assert right == int((scores.argmax(1) == torch.from_numpy(y)).sum())
        assert loss == pytest.approx(23 * float(nn.functional.cross_entropy(scores, torch.from_numpy(y))), rel=1e-5)
        with pytest.raises(UsageError, match="stay where they are"):
            stages.to("cpu")


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("place", PLACES)
def test_bits_of_the_module_alone(comm, place):
    with device_of(place, comm) as there:
        for schedule in ("gpipe", "1f1b", "zero-bubble", *(["interleaved"] if comm.size == 2 else [])):
            for microbatches in (1, 4) if schedule != "interleaved" else (4,):
                compare(comm, *there, schedule, microbatches)


def random_state(device):
    """Of PyTorch's generators on the CPU and the device."""
    return torch.get_rng_state().tolist(), device.type == "cuda" and torch.cuda.get_rng_state(device).tolist()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("place", PLACES)
def test_by_way_of_the_hosts_and_dropout_by_key(comm, place):
    with device_of(place, comm, reaches=False) as (xp, device):
        compare(comm, xp, device, "1f1b", 4)
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 5))
        options = {"cuts": (2,), "sample": (6,), "batch": 6, "microbatches": 3, "device": "cuda"}
        with psgd.torch.pipeline(module, comm, **options) as stages:
            x, y = samples(6, 0)
            x, before = x.reshape(6, 6), random_state(device)
            losses = [stages.gradient(6, x, y, key=key) for key in (1, 2, 1)]
            assert losses[0] == losses[2] != losses[1]
            assert random_state(device) == before
            assert stages.evaluate(6, x, y) == stages.evaluate(6, x, y)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("place", PLACES)
def test_cut_by_tensor(comm, place):
    with device_of(place, comm) as (xp, device):
        ours, whole = collectives.Communicator(comm), make().to(device)
        x, y = samples(8, 0)
        for p in whole.parameters():
            p.grad = torch.zeros_like(p)
        wanted, loss = alone(whole, x, y, 4, descending=False)
        module, here = psgd.torch.cut_by_tensor(make(), ours), comm.Split(comm.rank)
        options = {"cuts": (), "sample": (2, 3), "batch": 8, "microbatches": 2, "device": "cuda"}
        with psgd.torch.pipeline(module, here, **options) as stages:
            assert stages.gradient(8, x, y) == pytest.approx(loss, rel=1e-5)
            views = stages.layout.views(values(stages.grads))
            for p in stages.layout.parameters:
                np.testing.assert_allclose(views[p.name], wanted[p.name][p.slices], rtol=1e-4, atol=1e-6)
            assert stages.layout.size < sum(each.size for each in wanted.values())
            assert isinstance(stages.params, xp.ndarray)
        here.Free()
        # A module that is on a GPU is cut there, and trained in a loop of its own: autograd's threads do the sums.
        module = psgd.torch.cut_by_tensor(make(3 + comm.rank).to(device), ours)
        whole.zero_grad()
        for each in (whole, module):
            each(torch.from_numpy(x).to(device)).square().mean().backward()
        mine = module[1].mine
        for part, all_of_it in (
            (module[7].bias.grad, whole[7].bias.grad),
            (module[1].weight.grad, whole[1].weight.grad[mine.start : mine.stop]),
        ):
            assert torch.allclose(part, all_of_it, rtol=1e-4, atol=1e-6)
        ours.free()
