"""Stages of a PyTorch module on GPUs that take steps without waiting: the bits of delayed updates on one device."""

import itertools
from contextlib import contextmanager

import numpy as np
import pytest
from harness import delayed
from harness.device import cupy
from harness.fake_gpu import FakeGpu

import psgd
from psgd.optim.optimizer import Optimizer, OptimizerOptions
from psgd.optim.rules import create
from psgd.optim.schedules import Constant
from psgd.parallel import pipeline as module_of_pipelines

torch = pytest.importorskip("torch")
from psgd.torch.same_memory import array_of  # noqa: E402 -- where PyTorch is

nn = torch.nn
CUTS = {1: (), 2: (4,), 3: (2, 5)}
PLACES = (pytest.param("simulated"), pytest.param("gpu", marks=pytest.mark.gpu))
SCHEDULES = (("pipedream", 1), ("pipedream", 4), ("pipedream-2bw", 4))


@contextmanager
def device_of(place, comm):
    """The device's arrays, where PyTorch has it, the simulated GPU, and what changes the environment."""
    with pytest.MonkeyPatch.context() as patch:
        if place == "gpu":
            xp = cupy()
            from psgd.collectives.device.pick_gpu import choose_device

            choose_device(comm)
            yield xp, torch.device("cuda", torch.cuda.current_device()), None, patch
        else:
            fake = FakeGpu()
            patch.setattr(module_of_pipelines, "_gpu", lambda: fake)
            yield np, torch.device("cpu"), fake, patch
    comm.Barrier()


def make():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(6, 12),
        nn.ReLU(inplace=True),
        nn.Linear(12, 9),
        nn.GELU(),
        nn.Linear(9, 11, bias=False),
        nn.LayerNorm(11),
        nn.Linear(11, 5),
    )


def with_draws():
    torch.manual_seed(4)
    return nn.Sequential(
        *(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Dropout(0.3), nn.Linear(9, 8), nn.Dropout(0.3)),
        nn.Linear(8, 5),
    )


def options():
    return OptimizerOptions(create("momentum", 0.9, 1e-3), Constant(0.05))


def batch_of(step, n):
    rng = np.random.default_rng(step)
    return rng.standard_normal((n, 6)).astype(np.float32), rng.integers(0, 5, n)


def alone(device, cuts, counts, size, delay):
    """Delayed updates of the whole module on one device: its parameters by name, and the mean loss."""
    module = make().to(device)
    ends = (0, *cuts, len(module))
    stages = [[*module[start:stop].parameters()] for start, stop in itertools.pairwise(ends)]
    newest = [[p.detach().clone() for p in stage] for stage in stages]
    steps = [[Optimizer(array_of(value.view(-1)), options()) for value in stage] for stage in newest]
    history = [[[value.clone() for value in stage]] for stage in newest]
    for p in module.parameters():
        p.grad = torch.zeros_like(p)
    total, microbatch = 0.0, 0
    for number, n in enumerate(counts):
        x, y = (torch.from_numpy(part).to(device) for part in batch_of(number, n))
        module.zero_grad(set_to_none=False)
        losses = 0.0
        for start in range(0, n, size):
            for index, stage in enumerate(stages):
                for p, value in zip(stage, history[index][delay(index, number, microbatch)], strict=True):
                    p.data.copy_(value)
            part = slice(start, start + size)
            loss = nn.functional.cross_entropy(module(x[part]), y[part]) * (len(y[part]) / n)
            loss.backward()
            losses += loss.item()
            microbatch += 1
        for stage, optimizers, values, kept in zip(stages, steps, newest, history, strict=True):
            for p, optimizer in zip(stage, optimizers, strict=True):
                optimizer.take(array_of(p.grad.view(-1)), 1.0, 0)
            kept.append([value.clone() for value in values])
        total += losses * n
    values = itertools.chain.from_iterable(newest)  # in the order of the module's parameters
    names = (name for name, _ in module.named_parameters())
    return {name: value.cpu().numpy() for name, value in zip(names, values, strict=True)}, total / sum(counts)


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("place", PLACES)
def test_bits_of_delayed_updates_on_one_device(comm, place):
    with device_of(place, comm) as (xp, device, fake, _):
        counts = [8] * 40 + [3]
        for schedule, microbatches in SCHEDULES:
            size, ranks = 8 // microbatches, comm.size
            delay = delayed.two_versions if schedule == "pipedream-2bw" else delayed.stashed(ranks, microbatches)
            wanted, mean = alone(device, CUTS[ranks], counts, size, delay)
            named = {"cuts": CUTS[ranks], "sample": (6,), "batch": 8, "microbatches": microbatches}
            with psgd.torch.pipeline(make(), comm, schedule=schedule, device="cuda", **named) as stages:
                if fake is not None:
                    fake.modules, fake.launched = [stages.module], 0
                optimizer = Optimizer(stages.params, options())
                loss = stages.pipeline.train(
                    optimizer, sum(counts), lambda step: tuple(map(xp.asarray, batch_of(step, counts[step])))
                )
                assert loss == mean, schedule
                assert xp.array_equal(stages.params, optimizer.params)  # the module is on the newest again
                for name, p in stages.module.named_parameters():
                    assert np.array_equal(p.detach().cpu().numpy(), wanted[name]), (schedule, name)
                assert fake is None or fake.launched > 40
                x, y = batch_of(99, 8)
                assert np.isfinite(stages.gradient(8, x, y)) and stages.evaluate(8, x, y)[1] > 0


@pytest.mark.ranks(2)
@pytest.mark.parametrize("place", PLACES)
def test_recorded_passes_draw_and_normalize_as_those_by_python(comm, place):
    found = {}
    for graphs in (True, False):
        with device_of(place, comm) as (_, _, fake, patch):
            patch.setenv("PSGD_CUDA_GRAPHS", str(int(graphs)))
            patch.setattr(FakeGpu, "captures", graphs)
            named = {"cuts": (4,), "sample": (6,), "batch": 12, "microbatches": 3, "schedule": "pipedream-2bw"}
            with psgd.torch.pipeline(with_draws(), comm, device="cuda", **named) as stages:
                if fake is not None:
                    fake.modules = [stages.module]
                optimizer, losses = Optimizer(stages.params, options()), []
                for epoch in range(2):
                    losses.append(
                        stages.pipeline.train(
                            optimizer,
                            12 * 20,
                            lambda step, epoch=epoch: batch_of(20 * epoch + step, 12),
                            lambda step, epoch=epoch: (20 * epoch + step, np.arange(12)),
                        )
                    )
                    losses.append(stages.evaluate(12, *batch_of(77, 12)))
                assert fake is None or (fake.launched > 20) == graphs
                state = {name: value.cpu().numpy() for name, value in stages.module.state_dict().items()}
                found[graphs] = losses, state
    assert found[True][0] == found[False][0]
    assert all(np.array_equal(value, found[False][1][name]) for name, value in found[True][1].items())


@pytest.mark.ranks(2)
def test_versions_have_graphs_of_their_own_and_few(comm):
    with device_of("simulated", comm) as (_, _, fake, _):
        named = {"cuts": (4,), "sample": (6,), "batch": 8, "microbatches": 4}
        for schedule in ("pipedream", "pipedream-2bw"):
            with psgd.torch.pipeline(make(), comm, schedule=schedule, device="cuda", **named) as stages:
                fake.modules, fake.recorded = [stages.module], 0
                optimizer = Optimizer(stages.params, options())
                counts = []
                for _ in range(3):
                    stages.pipeline.train(optimizer, 8 * 40, lambda step: batch_of(step, 8))
                    counts.append(fake.recorded)
                flying = comm.size - comm.rank
                # Contexts, copies of the weights, and passes: F, L, and both halves of backward at once.
                assert 0 < counts[0] == counts[1] == counts[2] <= flying * 2 * 3
