"""Carries out collective calls, one after the other: the private communicator, the memory, the waits, the errors.

A Communicator has two engines, one for blocking and one for non-blocking calls, so that neither can get in the way of
the other: each has a communicator and a region of shared memory of its own.
"""

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.dispatch import contract
from psgd.collectives.algorithms.channel import Channel
from psgd.collectives.mpi.agreement import Mismatch
from psgd.collectives.mpi.wait import Test
from psgd.collectives.shm import layout
from psgd.collectives.dispatch.errors import LEFT, Control
from psgd.collectives.shm.registered import Node
from psgd.collectives.mpi.node import address_of
from psgd.collectives.mpi.request_cleanup import keep_for_ever
from psgd.collectives.mpi.agreement import TEXT_BYTES, packed, unpacked
from psgd.collectives.mpi.env import Variables
from psgd.collectives.mpi.wait import Waiter
from psgd.collectives.mpi.watchdog import Watch
from psgd.kernels.errors import AgreedError, ContractError, PeerLostError

Program = Generator[Test, None, None]
SPINS = 2000  # looks at a word before MPI gets its turn: about 50 us


class Engine:
    """One lane of collective calls.

    Args:
        comm: for its messages alone; `free` frees it.
        node: this rank's node, or None where memory is not shared.
        lane: 0 or 1, of the node's regions.
        crowded: ranks outnumber cores on this node.
        leaders: the first rank of each node.
        variables: of the environment.

    Attributes:
        local: all ranks are on this node and share memory.
        one_node: all ranks are on this node.
        checks: lines are exchanged between all ranks before each call (PSGD_CHECK=1).
        watch: called between tests.
        leaders: the channel of one rank a node, on these.
        line: this rank's line of the current call.
        block: the words of the current call, of which the line is the beginning.
        took: algorithm and transport of the last call; None: the kernel's state tells.
        prepared: what all words of `block` but a few were written for, where that is known.
        addresses: of what kernels work on.
        spins: for kernels, before they return WAIT.
        calls: so far.
        station: what device calls keep between them, once there was one.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        node: Node | None,
        lane: int,
        crowded: bool,
        leaders: list[int],
        variables: Variables,
    ) -> None:
        self.comm = comm
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size = self.comm.rank, self.comm.size
        self.node = node
        self.local = node is not None and node.size == self.size
        self.one_node = len(leaders) == 1
        self.lane = lane
        self.watch = Watch(self, variables.stall_s, variables.timeout_s)
        self.waiter = Waiter(crowded, self.watch, far=not self.one_node)
        self.spins = 0 if crowded else SPINS
        self.channel = Channel(self.comm)
        self.leaders = Channel(self.comm, leaders) if self.rank in leaders else self.channel
        self.control = Control(self.comm)
        self.block = np.zeros(layout.CALL_WORDS, np.int64)
        self.line = self.block[: layout.LINE_WORDS]
        self.calls = 0
        self.broken = ""
        self.text = ""
        self.took: tuple[str, str] | None = ("", "")
        self.prepared: object = None
        self.checks = variables.checks
        self.station: Any = None
        self._status = layout.DONE
        self._yields = False
        if node is not None:
            self._scratch = np.empty(3 * layout.FETCH_BYTES + 64, np.uint8)
            self._table = node.table(lane, -(-address_of(self._scratch) // 64) * 64)
            self._state = np.zeros(layout.STATE_WORDS, np.int64)
            self._where = np.zeros((node.size, layout.WHERE_WORDS), np.int64)
            self.node_at = address_of(self._table)
            self.addresses = self._addresses(node)

    def _addresses(self, node: Node) -> tuple[int, int, int, int, int]:
        tables = (self._table, self._state, self.block, node.maps, self._where)
        return tuple(address_of(table) for table in tables)  # type: ignore[return-value]

    def remap(self) -> None:
        """To be called after a registration: its table may have moved."""
        if self.node is not None:
            self.addresses = self._addresses(self.node)

    def run(self, program: Program) -> None:
        """Runs a program to its end. Blocks; its errors pass.

        Raises:
            AgreedError: ranks disagree, on all ranks.
            PeerLostError: a rank ended or left a call in the middle.
        """
        self.begin()
        wait = self.waiter.until if self._yields else self.waiter.soon
        try:
            for test in program:
                wait(test)
        except BaseException as error:
            told = self.ended(program, error)
            if told is error:
                raise
            raise told from None

    @property
    def last(self) -> tuple[str, str]:
        """Algorithm and transport of the last call."""
        if self.took is None and self.node is not None:
            from psgd.collectives.algorithms.intranode import PATHS

            return PATHS.get(int(self._state[layout.PATH]), ("inline", "shared"))
        return self.took or ("", "")

    def begin(self) -> None:
        """Marks the beginning of a call.

        Raises:
            ContractError: an earlier call failed in a way that cannot be mended.
        """
        if self.broken:
            raise ContractError(f"this communicator cannot be used any more, make a new one: {self.broken}")
        self.calls += 1
        self.watch.begin()

    def share_the_interpreter(self, spins: int) -> None:
        """Has waits of `run` sleep rather than spin in Python: for a thread beside one that computes."""
        self._yields = True
        self.spins = spins
        self.waiter = Waiter(True, self.watch)

    def kernel(self, call: Callable[[], int]) -> Program:
        """Calls a kernel until it returns something other than WAIT.

        Raises:
            AgreedError: lines differ or some rank's arguments are wrong.
            PeerLostError: it could not read a peer's memory.
        """
        yield from self.resume(call(), call)

    def resume(self, status: int, call: Callable[[], int]) -> Program:
        """Goes on with a kernel that has returned `status`."""
        self._status = status

        def test() -> bool:
            self._status = call()
            return self._status != layout.WAIT

        if status == layout.WAIT:
            yield test
        if self._status == layout.FAILED:
            raise PeerLostError("a peer's memory cannot be read any more")
        if self._status == layout.MISMATCH:
            raise self._disagreement()

    def tell(self, text: str) -> None:
        """Puts an error in this rank's line, to be published in place of its arguments."""
        raw = text.encode()[: layout.INLINE_BYTES]
        self.line[layout.ERROR] = len(raw)
        if self.node is not None:
            at = self._inline_at(int(self._state[layout.CALLS]))
            self.node.region(self.node.rank, self.lane)[at : at + len(raw)] = np.frombuffer(raw, np.uint8)

    def lines(self) -> tuple[list[NDArray[np.int64]], list[str]]:
        """The lines that the node's ranks published in the last greeting, and what they said of their arguments."""
        assert self.node is not None
        at = self._inline_at(int(self._state[layout.CALLS]) - 1)
        lines, texts = [], []
        for rank in range(self.node.size):
            memory = self.node.region(rank, self.lane)
            line = memory[at - layout.LINE_BYTES : at].view(np.int64).copy()
            lines.append(line)
            texts.append(bytes(memory[at : at + int(line[layout.ERROR])]).decode(errors="replace"))
        return lines, texts

    def behind(self) -> list[int]:
        """The ranks of the node, where that is all ranks, that have not come as far as this one in the current call."""
        assert self.node is not None
        mine = int(self._state[layout.STEP])
        steps = [int(self.node.region(rank, self.lane)[:8].view(np.int64)[0]) for rank in range(self.size)]
        return [rank for rank in range(self.size) if steps[rank] < mine]

    def _disagreement(self) -> Exception:
        if not self.local:
            return Mismatch(self.text)  # the other nodes have to hear of it
        assert self.node is not None
        return contract.judge(self.node.ranks, *self.lines())

    @staticmethod
    def _inline_at(call: int) -> int:
        return layout.LINES_AT + (call & 1) * layout.LINE_STRIDE + layout.LINE_BYTES

    def check(self, text: str) -> Program:
        """Exchanges lines between all ranks through MPI: what PSGD_CHECK=1 asks for.

        Raises:
            AgreedError: lines differ or some rank's arguments are wrong.
        """
        self.line[layout.ERROR] = len(text.encode())
        lines = np.empty((self.size, layout.LINE_WORDS), np.int64)
        yield self.comm.Iallgather(self.line, lines).Test
        if all(contract.agree(lines[0], line) for line in lines):
            return
        texts = np.empty((self.size, TEXT_BYTES), np.uint8)
        yield self.comm.Iallgather(packed(text), texts).Test
        raise contract.judge(range(self.size), list(lines), [unpacked(each) for each in texts])

    def ended(self, program: Program, error: BaseException) -> BaseException:
        """Ends a call that raised `error`: tells the others where they do not know, and says what to raise here."""
        if self.broken:
            return error
        if not isinstance(error, AgreedError):
            keep_for_ever(program)  # and with it the requests that may still be on their way
        return self._failed(error)

    def abandon(self, error: BaseException) -> None:
        """Breaks the engine if an exception hit between a kernel's turns, where no program was there to end."""
        if self.node is not None and self._state[layout.PHASE] != 0 and not self.broken:
            self._failed(error)

    def _failed(self, error: BaseException) -> BaseException:
        if isinstance(error, Mismatch):
            told = self.control.settle(self.line, str(error))
            self._break(str(told))
            return told
        if isinstance(error, AgreedError):
            return error
        if isinstance(error, MPI.Exception) and error.Get_error_class() in _REFUSALS:
            return error  # by MPI, of arguments that are the same everywhere
        if isinstance(error, MPI.Exception) and error.Get_error_class() in _lost_classes():
            error = PeerLostError(f"{contract.describe(self.line)}: MPI reports a lost rank: {error}")
        self._break(f"{type(error).__name__} in {contract.describe(self.line)}: {error}")
        if self.node is not None:
            at = layout.ABORT_AT
            self.node.region(self.node.rank, self.lane)[at : at + 8].view(np.int64)[0] = 1
        if not self.local and not isinstance(error, PeerLostError):
            self.control.say(LEFT, self.line, f"{type(error).__name__}: {error}")
        return error

    def _break(self, why: str) -> None:
        """Makes this engine unusable. Messages may still be on their way from and to memory: that is never freed."""
        self.broken = why
        keep_for_ever(self.channel)
        keep_for_ever(self.comm)

    def free(self) -> None:
        """Frees the communicator. Collective."""
        if self.broken:
            return
        self.broken = "it was freed"
        if self.station is not None:
            self.station.close()
        self.comm.Free()


_REFUSALS = (MPI.ERR_OP, MPI.ERR_TYPE, MPI.ERR_ARG, MPI.ERR_BUFFER, MPI.ERR_COUNT)


def _lost_classes() -> tuple[Any, ...]:
    names = ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")
    return tuple(getattr(MPI, name) for name in names if hasattr(MPI, name))
