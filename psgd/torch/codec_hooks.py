"""Communication hooks that send DDP's gradients through a codec, and keep for later steps what it leaves out.

The codecs and their options are those of docs/compression.md. Every bucket has a codec of its own. DDP lays its buckets
out anew after the first step: what is left of a parameter's gradient then moves with the parameter.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed as dist

from psgd.collectives import Communicator
from psgd.collectives.compressed import CompressedAllreduce
from psgd.collectives.mpi.env import switch
from psgd.kernels import codecs
from psgd.kernels.codecs.codec import Codec
from psgd.kernels.errors import UsageError
from psgd.torch.group_match import matched
from psgd.torch.hooks import allreduce_hook, completed, dense

Kept = dict[str, NDArray[Any]]


def onebit_hook(*, warmup: int = 0, block: int = 4096) -> "CodecHook":
    """A hook that sends the sign of each element, and for each block two means (Seide et al. 2014).

    Args:
        warmup: steps at the start of which gradients are sent whole.
        block: elements that share two means.
    """
    return CodecHook("onebit", warmup, block=block)


def threshold_hook(density: float = 1e-3, *, warmup: int = 0, **options: Any) -> "CodecHook":
    """A hook that sends a sign for each element that exceeds a threshold, which adapts to the density (Strom 2015).

    Args:
        density: share of the elements that is sent.
        warmup: steps at the start of which gradients are sent whole.
        options: `tau`, `adapt`, `clip` of the codec.
    """
    return CodecHook("threshold", warmup, density=density, **options)


def topk_hook(density: float = 1e-3, *, warmup: int = 0, momentum: float = 0.0, **options: Any) -> "CodecHook":
    """A hook that sends the largest elements (Lin et al. 2018).

    Args:
        density: share of the elements that is sent.
        warmup: steps at the start of which gradients are sent whole.
        momentum: that the codec applies, with momentum correction; the optimizer should then have none.
        options: `values` of the codec.
    """
    return CodecHook("topk", warmup, density=density, momentum=momentum, **options)


class _Bucket:
    """A bucket's parameters, where each lies in it, and its codec."""

    def __init__(self, comm: Communicator, bucket: dist.GradBucket, dtype: Any, name: str, options: Any) -> None:
        buffer = bucket.buffer()
        check = bool(switch("PSGD_CHECK"))
        self.codec: Codec = codecs.create(name, buffer.numel(), dtype, check=check, **options)
        self.codec.warm_up()
        self.exchange = CompressedAllreduce(comm, self.codec)
        self.parameters = bucket.parameters()
        starts = [grad.storage_offset() - buffer.storage_offset() for grad in bucket.gradients()]
        self.parts = [slice(at, at + p.numel()) for at, p in zip(starts, self.parameters, strict=True)]

    def holds(self, parameters: list[torch.Tensor]) -> bool:
        """Whether it is of these parameters."""
        return len(parameters) == len(self.parameters) and all(map(_is, parameters, self.parameters))

    def by_element(self) -> Kept:
        """What the codec keeps for each element, as views."""
        return {name: array for name, array in self.codec.arrays().items() if array.shape == (self.codec.n,)}


def _is(one: object, other: object) -> bool:
    return one is other


class CodecHook:
    """A hook for one DDP module, to be registered with a communicator; made by the functions above.

    A step in which some rank's gradient is not finite (or 2^100 and more) gives NaN on all ranks, so that a GradScaler
    leaves it out; residuals stay as they are.

    Args:
        name: of the codec.
        warmup: steps at the start of which gradients are sent whole.
        options: the codec's.

    Attributes:
        steps: of DDP so far.
    """

    def __init__(self, name: str, warmup: int, **options: Any) -> None:
        if not isinstance(warmup, int) or warmup < 0:
            raise UsageError(f"psgd.torch.{name}_hook: warmup: expected steps, 0 or more, got {warmup!r}")
        codecs.create(name, 64, **options)  # refuses wrong options here
        self.__qualname__ = self.__name__ = f"{name}_hook"  # DDP logs it
        self.steps = 0
        self._name, self._warmup, self._options = name, warmup, options
        self._buckets: dict[int, _Bucket] = {}
        self._moving: dict[int, Kept] = {}  # by parameter, what its last bucket has kept

    @property
    def bytes_sent(self) -> int:
        """Bytes that this rank has sent since the buckets were laid out, without steps that were sent whole."""
        return sum(each.exchange.bytes_sent for each in self._buckets.values())

    def residual(self, parameter: torch.Tensor) -> NDArray[Any] | None:
        """What is left to send of a parameter's gradient, in the order of its memory; None of one in no bucket yet."""
        for each in self._buckets.values():
            for other, part in zip(each.parameters, each.parts, strict=True):
                if other is parameter:
                    return each.codec.residual[part]
        return None

    def state_dict(self, module: torch.nn.Module) -> dict[str, Any]:
        """Returns copies of what this rank has left to send, for `torch.save`: each rank saves its own.

        Args:
            module: the one that DDP wraps, or DDP's; names are the module's own.

        Returns:
            `steps`, and under `kept` for each parameter's name the codec's arrays as tensors.
        """
        where = {id(parameter): name for name, parameter in _named(module).items()}
        kept = self._by_parameter()
        found = {where[number]: arrays for number, arrays in kept.items() if number in where}
        tensors = {name: {key: torch.from_numpy(a) for key, a in arrays.items()} for name, arrays in found.items()}
        return {"steps": self.steps, "kept": tensors}

    def load_state_dict(self, state: dict[str, Any], module: torch.nn.Module) -> None:
        """Continues from what `state_dict` gave; any layout of buckets will do.

        Args:
            state: this rank's own, of a hook with the same codec.
            module: as for `state_dict`.

        Raises:
            UsageError: not such a state, or one of another module.
        """
        named, where = _named(module), f"psgd.torch.{self.__name__}: load_state_dict"
        if not isinstance(state, dict) or set(state) != {"steps", "kept"} or not isinstance(state["steps"], int):
            raise UsageError(f"{where}: expected what state_dict returned, with steps and kept")
        moving: dict[int, Kept] = {}
        for name, arrays in state["kept"].items():
            parameter = named.get(name)
            sizes = {tuple(array.shape) for array in arrays.values()}
            if parameter is None or sizes - {(parameter.numel(),)}:
                got = "the module has " + (
                    "none of that name" if parameter is None else f"{parameter.numel()} elements"
                )
                raise UsageError(f"{where}: {name}: expected a parameter of shape {sorted(sizes)}, {got}")
            moving[id(parameter)] = {key: array.numpy().copy() for key, array in arrays.items()}
        self.steps = state["steps"]
        self._buckets.clear()
        self._moving = moving

    def __call__(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Puts the mean of what all ranks send into the bucket. Collective, blocks.

        Args:
            state: as of `allreduce_hook`.
            bucket: DDP's.
        """
        self.steps += bucket.index() == 0
        if self.steps <= self._warmup:
            return allreduce_hook(state, bucket)
        comm, buffer = matched(state), dense(bucket)
        work = (buffer if buffer.dtype in (torch.float32, torch.float64) else buffer.float()).cpu()
        update = work.numpy()
        exchange = self._of(comm, bucket, update.dtype).exchange
        if exchange.fine(update).all():
            exchange.replace(update)
            work.div_(comm.size)
        else:
            work.fill_(torch.nan)
        if work is not buffer:
            buffer.copy_(work)
        return completed(buffer)

    def _of(self, comm: Communicator, bucket: dist.GradBucket, dtype: Any) -> _Bucket:
        """The bucket's own state; what was kept for its parameters elsewhere moves there."""
        found = self._buckets.get(bucket.index())
        if found is not None and found.holds(bucket.parameters()):
            return found
        if found is not None:
            self._moving = self._by_parameter()
            self._buckets.clear()
        made = self._buckets[bucket.index()] = _Bucket(comm, bucket, dtype, self._name, self._options)
        for parameter, part in zip(made.parameters, made.parts, strict=True):
            for name, values in self._moving.pop(id(parameter), {}).items():
                np.copyto(made.by_element()[name][part], values)
        return made

    def _by_parameter(self) -> dict[int, Kept]:
        """Copies of what all buckets keep, by the parameter's `id`; what was not taken by a bucket yet, too."""
        kept = dict(self._moving)
        for each in self._buckets.values():
            arrays = each.by_element()
            for parameter, part in zip(each.parameters, each.parts, strict=True):
                kept[id(parameter)] = {name: array[part].copy() for name, array in arrays.items()}
        return kept


def _named(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Parameters by the name that they have without DDP around the module."""
    inner = module.module if isinstance(module, torch.nn.parallel.DistributedDataParallel) else module
    return dict(inner.named_parameters())
