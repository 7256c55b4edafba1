"""What `psgd.torch.shard` is given, looked at on all ranks before any of them shares it out."""

import json
from dataclasses import dataclass
from typing import Any

import torch
from mpi4py import MPI

from psgd.kernels.errors import AgreedUsageError, UsageError
from psgd.nn.layout import Layout
from psgd.runtime.agreement import agree
from psgd.torch import owned, parameters
from psgd.torch.kept_buffers import KeptBuffers
from psgd.torch.sharded import first_values
from psgd.torch.sharded.first_values import Init
from psgd.torch.sharded.module_units import Asked, UnitPlan, plan

NAME = "psgd.torch.shard"


@dataclass(frozen=True)
class Checked:
    """A module that can be sharded.

    Attributes:
        module: whose trained parameters have no memory, where it was on the meta device.
        meta: it was there.
        init, seed: of its first values then.
        kept: its buffers.
        layout: of the whole vector.
        dtype: of that.
        device: of the parameters.
        plan: the units.
        signature: what all ranks have alike.
        rank: of this process.
    """

    module: torch.nn.Module
    meta: bool
    init: Init | None
    seed: int
    kept: KeptBuffers
    layout: Layout
    dtype: torch.dtype
    device: torch.device
    plan: UnitPlan
    signature: str
    rank: int


def check(
    module: torch.nn.Module,
    comm: MPI.Intracomm,
    stage: int,
    units: Asked,
    buffers: str,
    init: Init | None,
    seed: int,
    device: Any,
    accumulate: int,
) -> Checked:
    """Looks at the module on all ranks. Collective, blocks.

    Raises:
        UsageError: something that cannot be, or differs between ranks; on all of them.
    """
    checked, complaint = None, None
    signed: dict[str, Any] = {"stage": stage, "seed": seed, "accumulate": accumulate}
    try:
        if type(stage) is not int or stage not in (1, 2, 3):
            raise UsageError(f"stage: expected 1, 2 or 3, got {stage!r}")
        if type(accumulate) is not int or accumulate < 1:
            raise UsageError(f"accumulate: expected a whole number of 1 or more, got {accumulate!r}")
        checked = _checked(module, units, buffers, init, seed, device, comm.Get_rank())
        signed |= {"module (names and shapes)": json.loads(checked.layout.to_json()), "units": checked.signature}
    except Exception as error:  # the other ranks must not wait
        complaint = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        complaint = complaint.removeprefix(f"{NAME}: ").removeprefix("psgd.torch.wrap: ")
    agree(comm, NAME, signed, complaint)
    if checked is None:
        raise AgreedUsageError(f"{NAME}: no module")
    return checked


def _checked(
    module: torch.nn.Module, units: Asked, buffers: str, init: Init | None, seed: int, device: Any, rank: int
) -> Checked:
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"expected a torch.nn.Module, got {type(module).__name__}")
    owned.check(module)
    meta = first_values.check(module, init)
    if meta:
        first_values.leave_meta(module, torch.device(device))
    kept = KeptBuffers(module, buffers)
    slots, layout, dtype = parameters.find(module)
    planned = plan(module, slots, layout.size, units)
    signature = f"{kept.signature}, units: {[(unit.owner, unit.part) for unit in planned.units]}"
    return Checked(module, meta, init, seed, kept, layout, dtype, slots[0].parameter.device, planned, signature, rank)
