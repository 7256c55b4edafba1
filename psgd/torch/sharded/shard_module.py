"""`psgd.torch.shard`."""

from typing import Any

import torch
from mpi4py import MPI

from psgd.torch.sharded.examined import check
from psgd.torch.sharded.first_values import Init
from psgd.torch.sharded.module import ShardedModule
from psgd.torch.sharded.module_units import Asked
from psgd.torch.sharded.whole_module import WholeModule


def shard(
    module: torch.nn.Module,
    comm: MPI.Intracomm,
    *,
    stage: int = 3,
    units: Asked = None,
    buffers: str = "average",
    init: Init | None = None,
    seed: int = 0,
    device: Any = "cpu",
    accumulate: int = 1,
) -> "ShardedModule | WholeModule":
    """Shares a module out: each rank keeps a part of what all would have. Collective over `comm`, blocks.

    Hand the result to `psgd.connect` with strategy "allreduce", over the same ranks; the module itself is used as
    before, on all ranks alike, with `ps.overlap(samples)` in front of each forward pass that is trained on::

        with psgd.torch.shard(module, comm) as model:
            with psgd.connect(comm, model, strategy="allreduce", rule="adam") as ps:
                for x, y in my_shard(ps.worker, ps.workers):
                    ps.overlap(len(x))
                    loss = criterion(module(x), y)
                    loss.backward()
                    ps.step(samples=len(x), loss=loss.item())
            weights = model.state_dict()  # on the first rank

    Args:
        module: on the CPU or on one GPU, with the first rank's values for all; or all on the meta device.
        comm: the ranks; it stays the caller's.
        stage: 1 shares out the optimizer's state, 2 the gradients too, 3 also the parameters.
        units: which modules are blocks, whose parameters are whole only while they run: names (`*` stands for any
            characters), classes, or a function of name and module; None: the members of each Sequential, ModuleList and
            ModuleDict. The parameters outside of blocks are whole while the module itself runs.
        buffers: as of `psgd.torch.wrap`.
        init: gives a part of a module that was on the meta device first values, as with `module.apply`; called with
            each part that has tensors of its own; None: its `reset_parameters`.
        seed: of such values.
        device: where such a module is made real.
        accumulate: as of `psgd.connect`, whose argument must be the same.

    Raises:
        UsageError: something that cannot be; on all ranks.
    """
    checked = check(module, comm, stage, units, buffers, init, seed, device, accumulate)
    if stage == 1 or comm.Get_size() == 1:
        return WholeModule(checked, comm.Get_size())
    return ShardedModule(checked, comm, stage, accumulate)
