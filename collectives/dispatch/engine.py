"""Carries out collective calls, one after the other: the private communicator, the ways between ranks, the waits.

A Communicator has two engines, one for blocking and one for non-blocking calls, so that neither can get in the way of
the other: each has a communicator and a region of shared memory of its own.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from psgd.collectives.algorithms.channel import Channel
from psgd.collectives.algorithms.intranode import PATHS
from psgd.collectives.arguments.descriptor import agree
from psgd.collectives.dispatch import closing, contract
from psgd.collectives.dispatch.control import Control
from psgd.collectives.dispatch.errors import Failures
from psgd.collectives.dispatch.stalls import StallWatchdog
from psgd.collectives.dispatch.waits import Waits
from psgd.collectives.mpi.agreement import TEXT_BYTES, Mismatch, packed, unpacked
from psgd.collectives.mpi.env import Variables
from psgd.collectives.mpi.request_cleanup import keep_for_ever
from psgd.collectives.mpi.wait import Steps, Waiter
from psgd.collectives.shm import layout
from psgd.collectives.shm.registered import Node
from psgd.collectives.shm.shared_channel import SharedChannel

_LISTEN_EVERY = 64  # calls: who is always the last never waits, and so never hears of those that wait for it
SPINS = 2000  # looks at a word before MPI gets its turn: about 50 us


class Engine:
    """One sequence of collective calls.

    Args:
        comm: for its messages alone; `free` frees it.
        node: this rank's node, or None where memory is not shared.
        index: 0 for blocking calls, 1 for others; also of the node's regions.
        crowded: ranks outnumber cores on this node.
        leaders: the first rank of each node.
        variables: of the environment.
        token: of the communicator, see Control.
        blocking_calls: the engine of those, for the one of others.

    Attributes:
        shared: with the ranks of this node; None where memory is not shared.
        channel: with all ranks, by messages.
        leaders: with one rank a node; None on others.
        local: all ranks are on this node and share memory.
        one_node: all ranks are on this node.
        blocking: calls of MPI may block.
        checks: descriptors are exchanged between all ranks before each call (PSGD_CHECK=1).
        published: each rank of `comm` publishes a step in shared memory before it waits.
        descriptor: this rank's, of the current call.
        failures: what to do when a call fails.
        watchdog: called between tests.
        took: algorithm and transport of the last call; None: the shared channel knows.
        calls: so far.
        ways: what device calls use, once there was one: `psgd.collectives.dispatch.on_device.DeviceWays`.
        started: tells how many calls this rank has started, of which some may have to wait for their turn.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        node: Node | None,
        index: int,
        crowded: bool,
        leaders: list[int],
        variables: Variables,
        token: int,
        blocking_calls: "Engine | None" = None,
    ) -> None:
        self.comm = comm
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size = self.comm.rank, self.comm.size
        self.local = node is not None and node.size == self.size
        self.one_node = len(leaders) == 1
        self.blocking = index == 0
        self.checks = variables.checks
        self.published = self.local and not self.checks
        self.channel = Channel(self.comm)
        self.leaders = Channel(self.comm, leaders) if self.rank in leaders else None
        spins = 0 if crowded else SPINS
        self.shared = None if node is None else SharedChannel(node, index, spins, self._disagreement)
        self.descriptor = np.zeros(layout.DESCRIPTOR_WORDS, np.int64) if self.shared is None else self.shared.descriptor
        control = Control(self.comm, index, token)
        self.failures = Failures(self.comm, self.channel, self.shared, self.descriptor, control)
        hub = control if blocking_calls is None else blocking_calls.failures.control
        self.waits = Waits(control, hub, index, self.descriptor, self.shared if self.published else None)
        self.watchdog = StallWatchdog(
            self.comm,
            control,
            self.waits,
            (self.channel,) if self.leaders is None else (self.channel, self.leaders),
            self.shared,
            self.descriptor,
            self.published,
            variables.stall_s,
            variables.timeout_s,
        )
        self.waiter = Waiter(crowded, self.watchdog, far=not self.one_node)
        self.calls = 0
        self.took: tuple[str, str] | None = ("", "")
        self.ways: Any = None
        self.started: Callable[[], int] = lambda: self.calls
        self.at_rest: Callable[[], bool] = lambda: True
        self._yields, self._met = False, True
        self._ends_alone = not self.published and self.size > 1  # a rank may be done with a call that others fail in
        if self._ends_alone:
            closing.watch(self)
        if blocking_calls is not None:
            self._twin(blocking_calls)

    def _twin(self, other: "Engine") -> None:
        """Has both engines of a communicator look at the other's calls while they wait."""
        for mine, theirs in ((self, other), (other, self)):
            mine.failures.twin = theirs.failures
            mine.failures.control.twin = theirs.failures.control
            mine.waits.twin = theirs.waits
            mine.waits.other_calls = lambda theirs=theirs: theirs.started()  # type: ignore[misc]

    def run(self, steps: Steps) -> None:
        """Runs a call to its end. Blocks; its errors pass.

        Raises:
            AgreedError: ranks disagree, on all ranks.
            PeerLostError: a rank ended or left a call in the middle.
        """
        self.begin()
        watchdog, blocked = self.watchdog, self.watchdog.blocked
        watchdog.blocked = blocked or not self._yields
        wait = self.waiter.until if self._yields else self.waiter.soon
        try:
            # Steps are resumed only once what they wait for is done, so an algorithm reads as if its messages blocked.
            # The wait looks after everything else meanwhile: MPI's progress, other requests, lost ranks.
            for test in steps:
                wait(test)
            self.waits.done = True
        except BaseException as error:
            agreed = self.failures.ended(steps, error)
            if agreed is error:
                raise
            raise agreed from None
        finally:
            watchdog.blocked = blocked

    @property
    def last(self) -> tuple[str, str]:
        """Algorithm and transport of the last call."""
        if self.took is None and self.shared is not None:
            return PATHS.get(self.shared.path, ("inline", "shared"))
        return self.took or ("", "")

    def begin(self) -> None:
        """Marks the beginning of a call.

        Raises:
            ContractError: an earlier call failed in a way that leaves this engine unusable.
        """
        self.failures.check()
        self.calls += 1
        if not self.published and not self.calls % _LISTEN_EVERY:
            self.failures.control.poll()
        self.watchdog.begin(self.calls)

    def share_the_interpreter(self, spins: int) -> None:
        """Has waits of `run` sleep rather than spin in Python: for a thread beside one that computes."""
        self._yields = True
        if self.shared is not None:
            self.shared.spins = spins
        self.waiter = Waiter(True, self.watchdog)

    def check(self, text: str) -> Steps:
        """Exchanges descriptors between all ranks through MPI: what PSGD_CHECK=1 asks for.

        Args:
            text: what is wrong with this rank's own arguments; empty where they are right.

        Raises:
            AgreedError: descriptors differ or some rank's arguments are wrong.
            Mismatch: a rank is ahead of others by a call, on all ranks.
        """
        self.descriptor[layout.ERROR] = len(text.encode())
        descriptors = np.empty((self.size, layout.DESCRIPTOR_WORDS), np.int64)
        self.waits.exchanging = True
        yield self.comm.Iallgather(self.descriptor, descriptors).Test
        numbers = descriptors[:, layout.CALL]
        if numbers.min() != numbers.max():  # messages of the call in which they differ may be on their way still
            raise Mismatch(text, call=int(numbers.min()))
        if all(agree(descriptors[0], each) for each in descriptors):
            self.waits.exchanging = False
            return
        texts = np.empty((self.size, TEXT_BYTES), np.uint8)
        yield self.comm.Iallgather(packed(text), texts).Test
        raise contract.judge(range(self.size), list(descriptors), [unpacked(each) for each in texts])

    def _disagreement(self) -> Exception:
        return self.failures.disagreement()

    def end(self) -> None:
        """Ends the calls. Collective, blocks.

        Raises:
            AgreedError: ranks have disagreed on the last ones.
        """
        if self._ends_alone and not self.failures.broken and (self.blocking or self.calls):
            self._met = closing.meet(self, time.monotonic() + closing.PATIENCE_S)

    def free(self) -> None:
        """Frees the communicator, once the calls of both engines have ended. Collective."""
        if self.failures.broken:
            return
        self.failures.broken = "it was freed"
        if self.ways is not None:
            self.ways.close()
        if not self._met:  # what ranks that come later send must not reach a communicator that is made meanwhile
            keep_for_ever(self.channel)
            return
        if self.blocking and self._ends_alone:
            self.failures.control.drain()
        self.comm.Free()
