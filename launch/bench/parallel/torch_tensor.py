"""PyTorch's tensor parallelism as a peer: the same two layers by columns and rows, over NCCL or Gloo."""

import os
import socket
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from psgd.collectives.device.pick_gpu import choose_device
from psgd.launch.bench.peers.gloo_process import store


class TorchGroup:
    """PyTorch's process group of all ranks, one thread each. Collective; to be closed.

    Args:
        comm: the ranks.
        device: "cpu" or "cuda", of which each rank's is the current one.
    """

    def __init__(self, comm: MPI.Intracomm, device: str) -> None:
        torch.set_num_threads(1)
        if device == "cuda":
            torch.cuda.set_device(choose_device(comm))
        if len(set(comm.allgather(socket.gethostname()))) == 1:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        host = comm.bcast("127.0.0.1" if "GLOO_SOCKET_IFNAME" in os.environ else socket.gethostname(), 0)
        self._kept = store(host, 0, comm.size, True) if comm.rank == 0 else None
        port = comm.bcast(self._kept.port if self._kept is not None else 0, 0)
        self._kept = self._kept or store(host, port, comm.size, False)
        backend = "nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, store=self._kept, world_size=comm.size, rank=comm.rank)
        self.mesh, self.device = init_device_mesh(device, (comm.size,)), device

    def close(self) -> None:
        """Ends it. Collective."""
        dist.destroy_process_group()


class TorchStep:
    """A gradient of the two layers. Collective.

    Args:
        group: the ranks.
        weights: of the whole model, by psgd's names in PyTorch's form, on the host.
        x: (batch, inputs), on the host.
        y: (batch,), on the host.
    """

    def __init__(self, group: TorchGroup, weights: Mapping[str, Any], x: Any, y: Any) -> None:
        units, inputs = weights["linear1.weight"].shape
        module = nn.Sequential(nn.Linear(inputs, units), nn.ReLU(), nn.Linear(units, len(weights["linear2.bias"])))
        names = {"0.weight": "linear1.weight", "0.bias": "linear1.bias"}
        names |= {"2.weight": "linear2.weight", "2.bias": "linear2.bias"}
        module.load_state_dict({theirs: torch.tensor(np.array(weights[ours])) for theirs, ours in names.items()})
        module.to(group.device)
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        self._module = parallelize_module(module, group.mesh, plan)
        self._x, self._y = torch.tensor(x, device=group.device), torch.tensor(y, device=group.device)
        self._wait = torch.cuda.synchronize if group.device == "cuda" else lambda: None

    def __call__(self) -> float:
        for parameter in self._module.parameters():
            parameter.grad = None
        loss = nn.functional.cross_entropy(self._module(self._x), self._y)
        loss.backward()
        value = float(loss.detach())
        self._wait()
        return value
