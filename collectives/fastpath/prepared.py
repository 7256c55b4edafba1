"""A call among the ranks of one node whose words are written once, so that each start is one turn of the kernel."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from psgd.collectives.algorithms import intranode
from psgd.collectives.arguments import descriptor
from psgd.collectives.dispatch.engine import Engine
from psgd.collectives.dispatch.planner import CallPlan
from psgd.collectives.mpi.wait import Steps
from psgd.collectives.shm import layout
from psgd.collectives.shm.call_kernel import run
from psgd.collectives.shm.shared_channel import Addresses


class PreparedCall:
    """The words of a call, and the kernel that carries it out.

    The buffers and their registration, the algorithm, chunks and scratch memory are looked up when this is made.

    Args:
        engine: all ranks are on its node, and it does not compare descriptors by messages.
        plan: of an algorithm in shared memory, with a call that reads the caller's memory.
    """

    def __init__(self, engine: Engine, plan: CallPlan) -> None:
        assert engine.shared is not None and plan.call is not None
        self._engine, self._shared = engine, engine.shared
        self._call = plan.call
        self._block = np.zeros(layout.CALL_WORDS, np.int64)
        self._memory: list[NDArray[Any]] = []
        call = plan.call
        descriptor.fill(self._block, plan.sign, call.count, call.shape, call.mark)
        if call.verb == "Barrier":
            self._block[layout.METHOD], self._block[layout.ITEM] = layout.AGREE, 1
            self._keep: object = None
        else:
            self._keep = intranode.fill(self._shared.node, self._block, call, plan.algorithm, self._scratch)
        self._status = layout.DONE
        self._map()

    @property
    def current(self) -> bool:
        """Whether the kernel's addresses still hold: a registration may have moved its table."""
        return self._seen is self._shared.addresses

    @property
    def one_turn(self) -> bool:
        """Whether the others need nothing more of this rank once its kernel has had one turn."""
        return bool(self._block[layout.METHOD] <= layout.INLINE)

    def begin(self, spins: int) -> int:
        """Gives the kernel its first turn: it publishes this rank's values, and looks `spins` times for the others'.

        Returns:
            The kernel's status, DONE once the result is there.
        """
        if not self.current:
            self._map()
        self._status = run(*self._addresses, self._reads, spins)
        if self._status == layout.DONE:
            self._engine.calls += 1
            self._end()
        return self._status

    def look(self) -> bool:
        """Gives the kernel another turn if it needs one; whether that was the last one. `after` is to follow."""
        if self._status == layout.WAIT:
            self._status = self._turn()
        if self._status != layout.WAIT:
            return True
        self._report()
        return False

    def after(self) -> Steps:
        """What is left to do after the last turn. Waits for nothing.

        Raises:
            AgreedError: ranks disagree.
            PeerLostError: a peer's memory could not be read.
        """
        if self._status != layout.DONE:
            self._report()
        yield from self._shared.resume(self._status, self._reads)
        self._end()

    def run(self) -> None:
        """Carries it out. Blocks.

        Raises:
            AgreedError: ranks disagree.
            PeerLostError: a rank ended or left the call in the middle.
        """
        if not self.current:
            self._map()
        try:
            status = self._turn()
            if status == layout.DONE:
                self._engine.calls += 1
                self._end()
                return
            self._engine.run(self._rest(status))
        except BaseException as error:
            self._engine.failures.abandon(error)
            raise

    def steps(self) -> Steps:
        """The whole call in steps, for one that has to wait for its turn."""
        if not self.current:
            self._map()
        self._report()
        yield from self._shared.run(self._reads, self._addresses)
        self._end()

    def _rest(self, status: int) -> Steps:
        self._report()
        yield from self._shared.resume(status, self._reads, self._addresses)
        self._end()

    def _end(self) -> None:
        self._engine.took = None
        if self._call.finish:
            self._call.done()

    def _report(self) -> None:
        """Lets reports of waits and errors describe this call."""
        self._engine.failures.text = ""
        self._engine.descriptor[:] = self._block[: layout.DESCRIPTOR_WORDS]
        self._shared.prepared = None

    def _map(self) -> None:
        shared = self._shared
        self._seen = shared.addresses
        self._addresses: Addresses = shared.addresses_with(self._block)
        self._reads = shared.node.reads
        self._turn: Callable[[], int] = partial(run, *self._addresses, self._reads, shared.spins)

    def _scratch(self, size: int, dtype: DTypeLike) -> NDArray[Any]:
        self._memory.append(np.empty(size, dtype))
        return self._memory[-1]
