"""`psgd.torch.shard`: a module of which each rank keeps its own part, for `psgd.connect`."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives import Communicator
from psgd.kernels.array import Array
from psgd.kernels.errors import AgreedUsageError, UsageError
from psgd.parallel.sharded.slices import Slices
from psgd.runtime.device_vectors import registered
from psgd.torch import owned
from psgd.torch.kept_buffers import KeptBuffers
from psgd.torch.same_memory import array_of, tensor_of
from psgd.torch.sharded import first_values, states
from psgd.torch.sharded.examined import Checked
from psgd.torch.sharded.first_pass import FirstPass
from psgd.torch.sharded.keeper import Keeper
from psgd.torch.sharded.module_exchange import ModuleExchange
from psgd.torch.sharded.module_gradients import ModuleGradients
from psgd.torch.sharded.pass_hooks import PassHooks
from psgd.torch.streams import Streams
from psgd.worker.bound_model import BoundModel, Wait
from psgd.worker.interface import Vector


class ShardedModule(BoundModel):
    """Stages 2 and 3 of `psgd.torch.shard`; see there. Creating is collective, blocks.

    Args:
        checked: the module.
        comm: the ranks; it stays the caller's.
        stage: 2 or 3.
        steps: whose gradients make one update.

    Attributes:
        module: PyTorch's, to be used as before, on all ranks alike.
        layout: names and shapes of the parameters in the whole vector.
        slices: which part of that vector this rank keeps.
        units: of the module.
        device: of the parameters.
        signature: of buffers and units.
        sharding: for `psgd.connect`: what moves units and gradients.
        spoiled: is not used.
    """

    def __init__(self, checked: Checked, comm: MPI.Intracomm, stage: int, steps: int) -> None:
        self.module, self.layout, self.device = checked.module, checked.layout, checked.device
        self.signature, self.spoiled = checked.signature, False
        self.units, self._owners = checked.plan.units, checked.plan.owners
        self._kept: KeptBuffers = checked.kept
        self._streams = Streams(self.device) if self.device.type == "cuda" else None
        self._comm = Communicator(comm)
        self.slices = Slices([unit.part for unit in self.units], self._comm.size, self._comm.rank)
        like = torch.empty(0, dtype=checked.dtype, device=self.device)
        size = self.slices.size if stage == 3 else self.slices.whole
        self._params: Array = registered(self._comm, array_of(like), max(size, self.slices.of(0).size))[:size]
        self.sharding = ModuleExchange(self._comm, self.slices, self._params, stage, steps, checked.plan.alone())
        self.sharding.on_begin, self.sharding.on_pass_by = self._begin, self._pass_by
        if self._streams is not None:
            self.sharding.follow = self._streams.follow
        self._keeper = Keeper(self.units, self.sharding)
        final: Callable[[int], None] = self._keeper.used if stage == 3 else _stays
        self._gradients = ModuleGradients(self.units, self.sharding, final, self._keeper.note)
        self._done: list[tuple[str, int]] = []  # by the last pass with samples
        self._first: FirstPass | None = None
        self._bound = self._closed = False
        owned.take((slot.parameter for unit in self.units for slot in unit.slots), self)
        self._share_out(checked)
        self._passes = PassHooks(self.module, checked.plan, self._keeper) if stage == 3 else None
        self._guard = states.Guard(self.module) if stage == 3 else None

    @property
    def params(self) -> Vector:
        """Stage 3: this rank's own part of the parameters; stage 2: all of them."""
        return self._params  # type: ignore[no-any-return]

    @property
    def most_elements(self) -> int:
        """Most elements that were whole or on their way at once, by the training passes and others."""
        return self._keeper.most

    @property
    def buffer_bytes(self) -> int:
        """Of the memory in which units are whole, and their gradients are made."""
        return self.sharding.buffer_bytes

    def prepare(self) -> Vector:
        if self._closed:
            raise UsageError("psgd.connect: params: the sharded module was closed")
        if self._bound:
            raise UsageError("psgd.connect: params: the module is being trained in another block: leave that first")
        self.follow()
        self._check()
        return self._params  # type: ignore[no-any-return]

    def follow(self) -> None:
        """On a GPU: makes PyTorch's current stream CuPy's, on the module's GPU. Does not block."""
        if self._streams is not None:
            self._streams.use()

    def bind(self, params: Vector, grads: Vector) -> None:
        assert params is self._params
        self._bound = True
        self._gradients.attach()

    def announce(self, ready: Callable[[range], None]) -> None:
        """What looks at each unit's gradient; of the rest `overlap` has told the exchange."""
        self.sharding.look = ready

    def gather(self) -> None:
        self._check()
        self._gradients.finish()
        self._done = self._keeper.end()
        if self._keeper.tell is not None:
            self._keeper.tell("end", 0)
            self._keeper.tell = None
        self._compare()
        self.sharding.passed()

    def scatter(self) -> None:
        self._keeper.refresh()  # the worker has gathered all units, in stage 2

    def unbind(self) -> None:
        self._bound, self._keeper.tell = False, None
        self._gradients.detach()
        if self.sharding.stage == 3:
            self._keeper.forget()
        self._keeper.refresh()  # the last steps may have been others' alone
        if self._streams is not None:
            self._streams.leave()

    def begin(self, comm: MPI.Comm, wait: Wait, kept: Mapping[str, Any]) -> None:
        if comm.Get_size() != self.slices.ranks or comm.Get_rank() != self.slices.rank:
            raise UsageError(
                f"psgd.connect: expected the {self.slices.ranks} ranks among which the module is sharded, in their "
                f"order, got {comm.Get_size()}"
            )
        self._first = FirstPass(comm, wait)
        self._kept.begin(comm, wait, kept)
        self._keeper.refresh()  # a checkpoint's

    def kept(self) -> dict[str, NDArray[np.uint8]]:
        return self._kept.kept()

    def put_back(self, kept: Mapping[str, Any]) -> None:
        self._kept.put_back(kept)

    def end(self, comm: MPI.Comm, wait: Wait, first: int, steps: int | None) -> None:
        self._kept.end(comm, wait, first, steps)

    def state_dict(self, rank: int | None = 0) -> dict[str, torch.Tensor]:
        """The whole module's, under its own names, on the CPU, gathered a unit at a time. Collective, blocks.

        Args:
            rank: the rank that gets it, the others an empty one; None: all get it.
        """
        return states.gathered(self, self._keeper, self._guard, rank in (None, self.slices.rank))

    def load_state_dict(self, state: Mapping[str, torch.Tensor] | None) -> None:
        """Gives the module the first rank's values, a unit at a time. Collective, blocks; outside of a block.

        Args:
            state: of the whole module, by its names; used on the first rank, elsewhere None is fine.

        Raises:
            UsageError: names or shapes that are not the module's; on all ranks.
        """
        dtype = tensor_of(self._params).dtype
        states.load(self, state, self._bound, self._comm, dtype, self.set_part)
        self._keeper.refresh()

    @contextmanager
    def gathered(self) -> Iterator[torch.nn.Module]:
        """All parameters are whole in this block, to be read: for what is no forward pass. Collective, blocks."""
        every = [unit.index for unit in self.units] if self.sharding.stage == 3 else []
        self._keeper.hold(every)
        try:
            yield self.module
        finally:
            self._keeper.drop(every)

    def close(self) -> None:
        """Frees what the ranks communicate with; call it on all ranks, unless one has failed.

        In stage 3 the module cannot be used any more: each rank has its part only.
        """
        if not self._closed:
            self._closed = True
            self.sharding.free()
            self._comm.free()

    def __enter__(self) -> "ShardedModule":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.close()

    def set_part(self, unit: int, values: torch.Tensor) -> None:
        """Each rank's part of a unit becomes what the first rank has in its values. Collective, blocks."""
        self._comm.Bcast(array_of(values), 0)
        own, part, params = self.slices.own[unit], self.units[unit].part, tensor_of(self._params)
        if self.sharding.stage == 3:
            params[self.slices.place(unit)] = values[own.start - part.start : own.stop - part.start]
        else:
            params[part.start : part.stop] = values

    def _share_out(self, checked: Checked) -> None:
        """Each rank takes its part of the first rank's values, one block at a time. Collective, blocks."""
        there: set[int] = set()
        for number, (owner, units) in enumerate(self._owners.items()):
            new = [unit for unit in units if unit not in there]
            others = [unit for unit in units if unit in there]
            if checked.meta:
                if self.sharding.stage == 3:
                    self._keeper.hold(others)
                for unit in new:
                    self._keeper.enter(unit, self.sharding.units[unit].zero_())
                parts = first_values.parts_of(self.module, owner, set(self._owners))
                first_values.fill(parts, checked.init, checked.seed, number)
                if self.sharding.stage == 3:
                    self._keeper.drop(others)
            for unit in new:
                values = self.sharding.units[unit]
                self._keeper.take(unit, values)
                self.set_part(unit, values)
                if self.sharding.stage == 3:
                    self._keeper.leave(unit)
            there |= set(new)
        self._keeper.refresh()

    def _begin(self, samples: int) -> None:
        """The worker announces a training pass."""
        if self._streams is not None:
            self._streams.follow()
        if not self._done and self._first is not None:
            self._first.begin(samples)
            self._keeper.tell = self._first.tell if self._first.mixed else None
        self._start()

    def _start(self) -> None:
        self._gradients.begin()
        self._keeper.begin()

    def _pass_by(self) -> None:
        """Takes part in a pass for which this rank has no samples: does what it did in its last one."""
        if self._streams is not None:
            self._streams.follow()
        todo: Iterable[tuple[str, int]] = self._done
        if not self._done:
            assert self._first is not None  # in a block
            if not self._first.begin(0):
                return
            todo = self._first.follow()
        self._start()
        for what, unit in todo:
            (self._keeper if what in ("gather", "leave") else self._gradients).again(what, unit)
        self._gradients.finish()
        self._done = self._keeper.end()
        self._compare()

    def _compare(self) -> None:
        """Refuses passes that differ between ranks: parts of different units were exchanged. Collective, blocks."""
        order = zlib.crc32(repr(self._done).encode())
        most = np.array([order, -order], np.int64)
        self._comm.Allreduce(MPI.IN_PLACE, most, MPI.MAX)
        if most[0] != -most[1]:
            raise AgreedUsageError(
                "psgd.torch: the ranks have used the units of the sharded module in different orders: on all of them "
                "forward and backward must run the same layers"
            )

    def _check(self) -> None:
        """Refuses to go on with a module whose parameters are not the ones that were shared out."""
        for unit in self.units:
            for slot in unit.slots:
                if any(owner.get(key) is not slot.parameter for owner, key in slot.places):
                    raise UsageError(
                        f"psgd.torch: {slot.name} was replaced after psgd.torch.shard: change the module before, and "
                        "load weights with the load_state_dict of what it returned"
                    )


def _stays(unit: int) -> None:
    """A unit that is not needed any more, where all ranks have all."""
