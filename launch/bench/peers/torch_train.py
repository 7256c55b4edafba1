"""The PyTorch peers of `psgd bench train`: one process, DDP over Gloo, Hogwild on shared memory.

Run as a module with `TorchOptions` in JSON as its argument; prints one JSON object. The same model, initial
parameters, normalization, shards and order as psgd's, in the fastest form found that computes the same: the
training set is one normalized float32 tensor in memory, a batch is one `index_select` (no DataLoader), one thread
a process, gradients as views of DDP's buckets. The default SGD step was faster on these small models than the
fused and the foreach one. Timed is the training loop alone, with the evaluations in it where they are asked for.
"""

import copy
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed, multiprocessing, nn

from psgd.data import Split, load
from psgd.data.normalization import Statistics, measure
from psgd.data.sampler import order
from psgd.launch.bench.peers import torch_cuda
from psgd.launch.bench.peers.torch_job import TrainJob
from psgd.launch.bench.peers.torch_model import build
from psgd.launch.bench.peers.torch_options import TorchOptions
from psgd.launch.bench.peers.torch_stragglers import Sleeper

BARRIER_TIMEOUT_S = 120.0
_EVALUATED_AT_ONCE = 1000


def steps_each(samples: int, workers: int, batch_size: int) -> int:
    """Steps of an epoch in which every worker has samples: DDP would wait for ever for one without."""
    return -(-(samples // workers) // batch_size)


def run(options: TorchOptions) -> dict[str, Any]:
    """Trains and evaluates; blocks.

    Returns:
        The keys of `psgd train --json` that the peers can tell, and `evaluations`: [seconds, accuracy] of each.
    """
    torch.set_num_threads(1)
    dataset = load(options.dataset)
    statistics = measure(dataset.train)
    x, y = tensors(dataset.train, statistics)
    model = build(options.model, dataset.sample_shape, dataset.classes, options.seed)
    with tempfile.TemporaryDirectory(prefix="psgd-bench-") as folder:
        times = torch.zeros(options.workers, 2, dtype=torch.float64)
        evaluations = torch.zeros(options.epochs - 1 if options.evaluates else 0, 2, dtype=torch.float64)
        job = TrainJob(options, model, x, y, tensors(dataset.test, statistics), times, evaluations, folder)
        if options.name in ("torch", "torch-graph"):
            _loop(model, torch_cuda.moved(job, 0), 0, Sleeper(options, 0))
        else:
            model.share_memory()
            times.share_memory_()
            evaluations.share_memory_()
            barrier = multiprocessing.get_context("spawn").Barrier(options.workers)
            multiprocessing.spawn(_worker, (job, barrier), nprocs=options.workers, join=True)
    steps = options.epochs * steps_each(len(y), options.workers, options.batch_size)
    each = [len(range(worker, len(y), options.workers)) for worker in range(options.workers)]
    most = options.batch_size * steps_each(len(y), options.workers, options.batch_size)
    samples = options.epochs * sum(min(count, most) for count in each)
    seconds = float(times[:, 1].max() - times[:, 0].min())
    right = accuracy(model, *(part.to(next(model.parameters()).device) for part in job.test))
    return {
        "steps": steps,
        "samples": samples,
        "seconds": seconds,
        "samples_per_second": samples / seconds,
        "test_accuracy": right,
        "evaluations": [*evaluations.tolist(), [seconds, right]],
    }


def tensors(split: Split, statistics: Statistics) -> tuple[torch.Tensor, torch.Tensor]:
    """All samples of a split, normalized, float32 (n, *sample_shape), and the labels, int64 (n,)."""
    x = split.x.astype(np.float32)
    x -= np.float32(statistics.mean)
    x *= np.float32(statistics.scale)
    return torch.from_numpy(x), torch.from_numpy(split.y.astype(np.int64))


def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """The share of samples whose largest logit is their label's."""
    right = 0
    with torch.no_grad():
        for images, labels in zip(x.split(_EVALUATED_AT_ONCE), y.split(_EVALUATED_AT_ONCE), strict=True):
            right += int((model(images).argmax(1) == labels).sum())
    return right / len(y)


def _worker(rank: int, job: TrainJob, barrier: Any) -> None:
    torch.set_num_threads(1)
    model, sleeper = job.model, Sleeper(job.options, rank)
    here = torch_cuda.moved(job, rank)
    if job.options.name == "ddp":
        meeting = Path(job.folder, "meet").as_uri()
        backend = "gloo" if job.options.device == "cpu" else "nccl"
        distributed.init_process_group(backend, init_method=meeting, rank=rank, world_size=job.options.workers)
        own = copy.deepcopy(model).to(here.x.device)
        model = nn.parallel.DistributedDataParallel(own, gradient_as_bucket_view=True)
        if job.options.inject:
            sleeper.hook(model)
    torch_cuda.warm_up(model, here)
    barrier.wait(BARRIER_TIMEOUT_S)
    _loop(model, here, rank, sleeper)
    if job.options.name == "ddp":
        if rank == 0:
            with torch.no_grad():
                for shared, own in zip(job.model.parameters(), model.parameters(), strict=True):
                    shared.copy_(own)
        del model
        distributed.barrier()
        distributed.destroy_process_group()


def _loop(model: nn.Module, job: TrainJob, worker: int, sleeper: Sleeper) -> None:
    options, samples = job.options, len(job.y)
    loss = nn.functional.cross_entropy
    optimizer = torch_cuda.sgd(model, job)
    steps = steps_each(samples, options.workers, options.batch_size)
    replay = torch_cuda.captured(model, job) if options.name == "torch-graph" else None
    start = time.monotonic()
    for epoch in range(options.epochs):
        shard = np.ascontiguousarray(order(samples, options.seed, epoch)[worker :: options.workers])
        for batch in torch.from_numpy(shard).to(job.x.device).split(options.batch_size)[:steps]:
            sleeper.begin()
            if replay is not None and len(batch) == options.batch_size:
                replay(batch)
                continue
            optimizer.zero_grad()
            loss(model(job.x.index_select(0, batch)), job.y.index_select(0, batch)).backward()
            sleeper.computed()
            optimizer.step()
        if worker == 0 and epoch < len(job.evaluations):
            right = accuracy(getattr(model, "module", model), *job.test)
            job.evaluations[epoch] = torch.tensor([time.monotonic() - start, right], dtype=torch.float64)
    if job.x.is_cuda:
        torch.cuda.synchronize()
    job.times[worker] = torch.tensor([start, time.monotonic()], dtype=torch.float64)


if __name__ == "__main__":
    print(json.dumps(run(TorchOptions(**json.loads(sys.argv[1])))), flush=True)
