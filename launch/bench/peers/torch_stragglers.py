"""`--inject` for the PyTorch peers: the same sleep at the same place, between a worker's gradient and what follows."""

import time
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from psgd.launch.bench.peers.torch_options import TorchOptions
from psgd.runtime.faults import Injector


class Sleeper:
    """One worker's.

    Args:
        options: its `inject` names the stragglers; with none, nothing here sleeps.
        worker: its index.
    """

    def __init__(self, options: TorchOptions, worker: int) -> None:
        self._stragglers = Injector(options.inject, worker, options.workers)
        self._hooked = False
        self._step = 0
        self._began = 0.0

    def hook(self, model: nn.parallel.DistributedDataParallel) -> None:
        """Sleeps within backward from now on, before the model's last all-reduce: after it would be too late."""
        model.register_comm_hook(None, self._before_reducing)
        self._hooked = True

    def begin(self) -> None:
        """A step begins."""
        self._began = time.perf_counter()

    def computed(self) -> None:
        """Backward has ended."""
        if not self._hooked:
            self._sleep()
        self._step += 1

    def _sleep(self) -> None:
        self._stragglers.sleep(self._step, time.perf_counter() - self._began)

    def _before_reducing(self, state: Any, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.is_last():
            self._sleep()
        return default_hooks.allreduce_hook(None, bucket)  # type: ignore[no-any-return]
