"""What each rank of `psgd bench ddp` does on cores: verify, then time the contenders in turn."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

import psgd
import psgd.torch
from psgd import collectives
from psgd.kernels.errors import Error
from psgd.launch.bench.ddp import modules
from psgd.launch.bench.ddp.torch_ranks import process_group
from psgd.launch.bench.peers import cores
from psgd.launch.bench.stats import median

WARM = 3
BATCH, SIDE, LR, MOMENTUM = 32, 32, 0.05, 0.9
VERIFIED = 10
"""Steps of the ResNet whose losses are compared."""
GLOO, HOOK, OWN, ALONE = "gloo", "hook", "psgd", "alone"
Step = Callable[[], float]


def measure(comm: MPI.Intracomm, sizes: Sequence[int], buckets: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Verifies and times each size, then the ResNet. Collective, so all ranks must take every row.

    Yields:
        Rows with medians of the slowest rank in seconds, the same on all ranks; `nbytes` is 0 for the ResNet.

    Raises:
        Error: a contender's gradients or losses are not the others'; on all ranks.
    """
    with process_group(comm, "gloo"):
        cores.pin(comm)
        with collectives.Communicator(comm) as ours:
            for nbytes in sizes:
                steps = _of_buckets(ours, nbytes, buckets)
                yield {"nbytes": nbytes, "buckets": buckets, **_timed(comm, steps, repeats)}
            module = modules.resnet()
            model = psgd.torch.wrap(module)
            with psgd.connect(comm, model, strategy="allreduce", rule="momentum", momentum=MOMENTUM, lr=LR) as ps:
                steps = _of_resnet(ours, module, ps)
                _compare(comm, steps)
                yield {"nbytes": 0, "buckets": 0, **_timed(comm, steps, repeats)}


def _distributed(module: nn.Module, ours: collectives.Communicator | None, **options: Any) -> nn.Module:
    model = nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=True, **options)
    if ours is not None:
        model.register_comm_hook(ours, psgd.torch.allreduce_hook)
    return model


def _of_buckets(ours: collectives.Communicator, nbytes: int, count: int) -> dict[str, Step]:
    """Forward and backward of vectors; each is a bucket of its own."""
    cap = nbytes / 2**20
    weights = torch.arange(1.0, count + 1) * (ours.rank + 1)
    expected = [(k + 1) * (ours.size + 1) / 2 for k in range(count)]
    steps: dict[str, Step] = {}
    for name in (GLOO, HOOK, ALONE):
        model = _distributed(modules.Vectors(count, nbytes), ours if name == HOOK else None, bucket_cap_mb=cap)

        def step(model: Any = model, name: str = name) -> float:
            if name == ALONE:
                with model.no_sync():
                    model(weights).backward()
            else:
                model(weights).backward()
            return 0.0

        for turn in range(WARM):
            for vector in model.parameters():
                vector.grad = None if turn == 0 else vector.grad.zero_()
            step()
            right = [bool((v.grad == e).all()) for v, e in zip(model.parameters(), expected, strict=True)]
            _together(ours, name == ALONE or all(right), f"{name}: gradients of {nbytes} bytes are not the mean")
        steps[name] = _clearing(model, step)
    return steps


def _clearing(model: nn.Module, step: Step) -> Step:
    vectors = list(model.parameters())

    def cleared() -> float:
        torch._foreach_zero_([v.grad for v in vectors])
        return step()

    return cleared


def _of_resnet(ours: collectives.Communicator, module: nn.Module, ps: Any) -> dict[str, Step]:
    """A whole step with the optimizer's."""
    generator = torch.Generator().manual_seed(ours.rank)
    x = torch.randn(BATCH, 3, SIDE, SIDE, generator=generator)
    y = torch.randint(0, 10, (BATCH,), generator=generator)
    steps: dict[str, Step] = {}
    for name in (GLOO, HOOK, ALONE):
        plain = modules.resnet()
        model = plain if name == ALONE else _distributed(plain, ours if name == HOOK else None)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)

        def step(model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> float:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return float(loss.detach())

        steps[name] = step

    def own() -> float:
        module.zero_grad()
        ps.overlap(BATCH)
        loss = nn.functional.cross_entropy(module(x), y)
        loss.backward()
        ps.step(samples=BATCH)
        return float(loss.detach())

    steps[OWN] = own
    return steps


def _compare(comm: MPI.Intracomm, steps: dict[str, Step]) -> None:
    """Compares the losses of the first steps: on two ranks they have the same bits."""
    curves = {name: np.array([step() for _ in range(VERIFIED)]) for name, step in steps.items()}
    for name in (HOOK, OWN):
        apart = np.abs(curves[name] - curves[GLOO])
        comm.Allreduce(MPI.IN_PLACE, apart, MPI.MAX)
        fine = not apart.any() if comm.size == 2 else apart[0] == 0 and apart.max() < 1e-2
        _together(comm, bool(fine), f"{name}: losses are up to {apart.max():.1e} from those of DDP over Gloo")


def _together(comm: Any, fine: bool, what: str) -> None:
    flag = np.array([fine], np.int64)
    comm.Allreduce(MPI.IN_PLACE, flag, MPI.MIN)
    if not flag[0]:
        raise Error(f"bench ddp: {what}")


def _timed(comm: MPI.Intracomm, steps: dict[str, Step], repeats: int) -> dict[str, float | None]:
    """Medians over all steps of the slowest rank's time; contenders take turns step by step."""
    seconds = {name: np.zeros(repeats) for name in steps}
    for turn in range(-1, repeats):  # the first is not counted
        for name, step in steps.items():
            if name == GLOO:
                cores.unpin()  # its threads must not share a core with the rank's
            comm.Barrier()
            began = time.perf_counter()
            step()
            seconds[name][max(turn, 0)] = time.perf_counter() - began
            if name == GLOO:
                cores.pin(comm)
    found: dict[str, float | None] = dict.fromkeys((f"{name}_seconds" for name in (GLOO, HOOK, OWN, ALONE)), None)
    for name, mine in seconds.items():
        comm.Allreduce(MPI.IN_PLACE, mine, MPI.MAX)
        found[f"{name}_seconds"] = median(mine.tolist())
    return found
