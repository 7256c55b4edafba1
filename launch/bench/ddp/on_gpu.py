"""What each rank of `psgd bench ddp --device cuda` does: verify, choose DDP's best bucket size, then time in turn."""

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
from psgd.collectives.device.pick_gpu import choose_device
from psgd.kernels.errors import Error
from psgd.launch.bench.ddp import modules
from psgd.launch.bench.ddp.torch_ranks import process_group
from psgd.launch.bench.peers import cores
from psgd.launch.bench.stats import median

SIDE, LR, MOMENTUM = 32, 0.05, 0.9
STEPS = 10
"""Between two looks at the clock: the host may run ahead, as in training. And whose losses are compared."""
WARM_ROUNDS, TRIAL_ROUNDS = 3, 5
BUCKETS_MB = (1, 5, 25, 100)
"""DDP's sizes that are tried."""
APART = 1e-2
"""Losses, which begin at 2.3, may be so far apart within `STEPS` by rounding, which training amplifies."""
PEER, HOOK, OWN, ALONE = "peer", "hook", "psgd", "alone"
Step = Callable[[], torch.Tensor]


def measure(comm: MPI.Intracomm, batches: Sequence[int], repeats: int) -> Iterator[dict[str, Any]]:
    """Verifies and times a ResNet-18 for each batch size. Collective, so all ranks must take every row.

    Args:
        comm: the ranks, which share the node's GPUs in turn.
        batches: samples of a rank's step.
        repeats: rounds of `STEPS` steps.

    Yields:
        Rows with medians of the slowest rank in seconds for a step, the same on all ranks; `bucket_mb` is the size that
        was best for DDP, `apart` the largest difference of a loss from DDP's, without TensorFloat-32 and with
        convolutions that add in one order; what is timed has PyTorch's defaults.

    Raises:
        Error: a contender's losses are not DDP's; on all ranks.
    """
    torch.cuda.set_device(choose_device(comm))
    torch.backends.cudnn.benchmark = True
    cores.unpin()
    with process_group(comm, "nccl"), collectives.Communicator(comm) as ours:
        for batch in batches:
            yield {"batch": batch, "ranks": comm.size, **_row(comm, ours, batch, repeats)}
            torch.cuda.empty_cache()


def _row(comm: MPI.Intracomm, ours: collectives.Communicator, batch: int, repeats: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(comm.rank)
    x = torch.randn(batch, 3, SIDE, SIDE, generator=generator).cuda()
    y = torch.randint(0, 10, (batch,), generator=generator).cuda()
    best = _best_bucket(comm, x, y)
    peer, hook = _distributed(best), _distributed(best)
    hook.register_comm_hook(ours, psgd.torch.allreduce_hook)
    steps = {name: _torch_step(model, x, y) for name, model in ((PEER, peer), (HOOK, hook))}
    steps[ALONE] = _torch_step(modules.resnet18().cuda(), x, y)
    module = modules.resnet18().cuda()
    model = psgd.torch.wrap(module)
    with psgd.connect(comm, model, strategy="allreduce", rule="momentum", momentum=MOMENTUM, lr=LR) as ps:
        steps[OWN] = _own_step(module, ps, x, y)
        apart = compare(comm, {name: step for name, step in steps.items() if name != ALONE})
        found = _timed(comm, steps, repeats)
    return {"bucket_mb": best, "apart": apart, **{f"{name}_seconds": median(mine) for name, mine in found.items()}}


def _distributed(bucket_mb: int) -> nn.Module:
    """DDP with the options that are best here: no copies of gradients, no buffers to send, a graph that stays."""
    return nn.parallel.DistributedDataParallel(
        modules.resnet18().cuda(),
        bucket_cap_mb=bucket_mb,
        gradient_as_bucket_view=True,
        static_graph=True,
        broadcast_buffers=False,
    )


def _best_bucket(comm: MPI.Intracomm, x: torch.Tensor, y: torch.Tensor) -> int:
    """The size with which DDP is fastest, on the slowest rank."""
    steps = {str(size): _torch_step(_distributed(size), x, y) for size in BUCKETS_MB}
    found = {name: median(mine) for name, mine in _timed(comm, steps, TRIAL_ROUNDS).items()}
    return int(min(found, key=lambda name: found[name]))


def _torch_step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, fused=True)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _own_step(module: nn.Module, ps: Any, x: torch.Tensor, y: torch.Tensor) -> Step:
    def step() -> torch.Tensor:
        module.zero_grad()
        ps.overlap(len(x))
        loss = nn.functional.cross_entropy(module(x), y)
        loss.backward()
        ps.step(samples=len(x))
        return loss.detach()

    return step


def compare(comm: MPI.Intracomm, steps: dict[str, Callable[[], Any]]) -> float:
    """Compares the losses of the first steps with DDP's: the first has its bits, later ones are near.

    Returns:
        How far apart the furthest are, on any rank.

    Raises:
        Error: further than `APART`; on all ranks.
    """
    curves = {name: np.array([float(step()) for _ in range(STEPS)]) for name, step in steps.items()}
    furthest = 0.0
    for name, curve in curves.items():
        apart = np.abs(curve - curves[PEER])
        comm.Allreduce(MPI.IN_PLACE, apart, MPI.MAX)
        furthest = max(furthest, float(apart.max()))
        if not (apart[0] < 1e-6 and apart.max() < APART):
            raise Error(
                f"bench ddp: {name}: losses are up to {apart.max():.1e} from DDP's over NCCL, the first "
                f"{apart[0]:.1e}: expected below {APART:g} and 1e-06"
            )
    return furthest


def _timed(comm: MPI.Intracomm, steps: dict[str, Step], repeats: int) -> dict[str, list[float]]:
    """Seconds of a step in each round, of the slowest rank; contenders take turns round by round."""
    seconds = {name: np.zeros(repeats) for name in steps}
    for turn in range(-WARM_ROUNDS, repeats):  # the first are not counted
        for name, step in steps.items():
            torch.cuda.synchronize()
            comm.Barrier()
            began = time.perf_counter()
            for _ in range(STEPS):
                step()
            torch.cuda.synchronize()
            seconds[name][max(turn, 0)] = (time.perf_counter() - began) / STEPS
    for mine in seconds.values():
        comm.Allreduce(MPI.IN_PLACE, mine, MPI.MAX)
    return {name: mine.tolist() for name, mine in seconds.items()}
