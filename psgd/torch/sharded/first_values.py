"""First values of a sharded module, a unit at a time: nobody has the whole module, unless it was made before."""

from collections.abc import Callable, Iterator

import torch

from psgd.kernels.errors import UsageError
from psgd.torch.first_draws import drawing, has_own, reset_of

Init = Callable[[torch.nn.Module], object]
"""Gives the tensors that a part of the module has itself first values, in place, as with `module.apply`."""


def check(module: torch.nn.Module, init: Init | None) -> bool:
    """Whether the module is on the meta device.

    Raises:
        UsageError: a part of it is there only, or cannot be given values.
    """
    tensors = [*module.named_parameters(), *module.named_buffers()]
    there = [name for name, tensor in tensors if tensor.is_meta]
    if not there:
        return False
    if elsewhere := [name for name, tensor in tensors if not tensor.is_meta]:
        raise UsageError(
            f"psgd.torch.shard: expected all tensors on the meta device, or none, got {there[0]} there and "
            f"{elsewhere[0]} not"
        )
    for name, part in module.named_modules():
        if init is None and has_own(part) and reset_of(part) is None:
            raise UsageError(
                f"psgd.torch.shard: {name or 'module'} ({type(part).__name__}) is on the meta device and has no "
                "reset_parameters(): pass init=function, which is called with each part that has tensors of its own"
            )
    return True


def leave_meta(module: torch.nn.Module, device: torch.device) -> None:
    """Trained parameters get a shape and no memory on the device; other tensors get memory. Ties are kept."""
    made: dict[int, torch.nn.Parameter] = {}
    for part in module.modules():
        for key, p in part._parameters.items():
            if p is None:
                continue
            if id(p) not in made:
                if p.requires_grad:
                    nothing = torch.full((), torch.nan, dtype=p.dtype, device=device).expand(p.shape)
                else:
                    nothing = torch.empty_like(p, device=device)
                made[id(p)] = torch.nn.Parameter(nothing, p.requires_grad)
            part._parameters[key] = made[id(p)]
        for key, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[key] = torch.empty_like(buffer, device=device)


def parts_of(module: torch.nn.Module, owner: str, owners: set[str]) -> Iterator[torch.nn.Module]:
    """What belongs to one block, and not to one further inside; an owner behind its parts, whose values it may set."""
    inside = [name for name in owners if name != owner and (not owner or name.startswith(f"{owner}."))]
    mine = []
    for name, part in module.get_submodule(owner).named_modules():
        whole = f"{owner}.{name}" if owner and name else owner or name
        if not any(whole == other or whole.startswith(f"{other}.") for other in inside):
            mine.append(part)
    yield from reversed(mine)


def fill(parts: Iterator[torch.nn.Module], init: Init | None, seed: int, number: int) -> None:
    """Gives parts of one block values, by the seed and the block's number alone; generators are as before then."""
    with drawing(seed, number):
        for part in parts:
            if not has_own(part):
                continue
            if init is not None:
                init(part)
            elif (reset := reset_of(part)) is not None:
                reset()
