"""A call of device arrays: by kernels among peers, round a ring, or not at all."""

from collections.abc import Generator
from typing import Any

from psgd.collectives.arguments.call import Call
from psgd.collectives.device import execute
from psgd.collectives.device.context import DeviceContext
from psgd.collectives.dispatch import dispatch
from psgd.collectives.dispatch.engine import Engine
from psgd.collectives.mpi.wait import Steps, Test
from psgd.collectives.peers import calls
from psgd.collectives.peers.calls import PeerCall
from psgd.collectives.peers.fast import FastPeers
from psgd.collectives.peers.group import PeerGroup
from psgd.collectives.peers.run import Ahead, PeerRun, PeerWait
from psgd.collectives.peers.watch import PeerWatch
from psgd.kernels.errors import AgreedContractError, UsageError


class DeviceWays:
    """What an engine's device calls use.

    Attributes:
        peers: this node's GPUs, where they can map each other's memory.
        context: the ring's, once it was needed.
    """

    def __init__(self, engine: Engine, peers: PeerGroup | None) -> None:
        self.peers = peers
        self.context: DeviceContext | None = None
        self._engine = engine
        self._watch: PeerWatch | None = None
        self._fast = None if peers is None or engine.checks else FastPeers(peers, Ahead(engine.shared))

    def allreduce(self, sendbuf: Any, recvbuf: Any, op: Any, stream: Any, waits: bool = True) -> bool:
        """The fast path: does the call, or returns False where it must take the general one.

        Blocks, unless `waits` is False, or the stream is being captured in a CUDA graph.

        Raises:
            ContractError: ranks passed different calls, on all ranks.
            PeerLostError: a rank ended.
        """
        fast, engine = self._fast, self._engine
        if fast is None:
            return False
        if engine.failures.broken or engine.failures.disagreed:
            fast.missed = None
            return False
        if (made := fast.find(sendbuf, recvbuf, op)) is None:
            return False
        if waits:
            wait = fast.start(made, recvbuf, stream)
        else:
            wait = None
            fast.enqueue(made, recvbuf, stream)
            self.watch()
        engine.took = made.shape.kernel, "peers"
        if wait is None:
            engine.calls += 1
        else:
            engine.run(self._end(made, wait))
        return True

    def put(self, made: PeerCall, stream: int) -> bool:
        """Puts a call that was carried out before on a stream; False where it must take the general path.

        Args:
            made: its kernel.
            stream: the address, of a stream of the current GPU.
        """
        fast, engine = self._fast, self._engine
        if fast is None or not fast.fit or engine.failures.broken or engine.failures.disagreed:
            return False
        fast.put(made, stream)
        self.watch()
        engine.took = made.shape.kernel, "peers"
        engine.calls += 1
        return True

    def settled(self, made: PeerCall) -> Steps:
        """Waits for what was put on streams, the last of which is this call."""
        assert self._fast is not None
        yield from self._end(made, self._fast.wait())

    def watch(self) -> None:
        """Has somebody look after calls that no rank waits for."""
        shared = self._engine.shared
        if self._watch is None and self.peers is not None and shared is not None:
            self._watch = PeerWatch(self.peers, lambda: bool(shared.node.lost()) or shared.aborted() >= 0)

    def remember(self, run: PeerRun) -> None:
        """Keeps a call that the fast path did not know."""
        if self._fast is not None and run.made is not None and not run.verdict:
            self._fast.remember(run.made)

    def _end(self, made: PeerCall, wait: PeerWait) -> Steps:
        yield wait
        if wait.verdict:
            verb, sign, count, shape, mark = made.words
            yield from differ(self._engine, Call(verb, count=count, shape=shape, mark=mark), sign)

    def close(self) -> None:
        """Frees it. Collective."""
        if self._watch is not None:
            self._watch.close()
        if self.context is not None:
            self.context.close()
        if self.peers is not None:
            self.peers.close()


def differ(engine: Engine, call: Call, sign: int) -> Steps:
    """Ends a call that kernels have found to differ between ranks: raises on all of them what differs."""
    yield from dispatch.agreement(engine, call.verb, call, "", sign)
    raise AgreedContractError(f"{call.verb} of device arrays: ranks passed different calls")


def by_gpus(engine: Engine, call: Call, sign: int, algorithm: str) -> Generator[Test, None, bool]:
    """Carries out a device call, on all ranks alike; whether GPUs do: else it must go through the host.

    Peers' kernels compare calls by themselves. Everything else begins when all ranks have agreed on it.

    Args:
        engine: whose turn it is.
        call: what this rank passed.
        sign: its signature.
        algorithm: that the caller asked for, or empty.

    Raises:
        AgreedError: ranks disagree.
        UsageError: the arrays are not on the GPU that this communicator has used before.
    """
    job = call.job
    agreed = False
    if engine.ways is None:
        yield from dispatch.agreement(engine, call.verb, call, "", sign)
        peers = PeerGroup.create(engine.comm, job.device) if engine.local else None
        engine.ways, agreed = DeviceWays(engine, peers), True
        engine.failures.at_end = peers.order_end if peers is not None else None
    peers = engine.ways.peers
    if peers is not None and not algorithm and calls.takes(call.kind, call.op):
        yield from _by_peers(engine, peers, call, sign)
    elif not job.ring:
        return False
    else:
        if not agreed:
            yield from dispatch.agreement(engine, call.verb, call, "", sign)
        if engine.ways.context is None:
            engine.ways.context = DeviceContext.create(engine.comm, engine.one_node and engine.shared is not None)
        engine.took = ("ring", (yield from execute.run(engine.ways.context, call)))
    call.done()
    return True


def _by_peers(engine: Engine, peers: PeerGroup, call: Call, sign: int) -> Steps:
    if call.job.device != peers.device:
        raise UsageError(
            f"{call.verb}: expected arrays on GPU {peers.device}, as in this communicator's first call, got GPU "
            f"{call.job.device}; create a communicator for each GPU"
        )
    run = PeerRun(peers, call, sign, Ahead(engine.shared))
    failures = engine.failures
    if engine.checks or run.needs_memory or failures.disagreed:
        yield from dispatch.agreement(engine, call.verb, call, "", sign)
        if failures.disagreed:  # perhaps only some ranks have started a kernel for that call
            peers.count_alike()
            failures.disagreed = False
        run.get_memory()
    yield from run.steps()
    if run.verdict:
        yield from differ(engine, call, sign)
    if run.captured:
        engine.ways.watch()
    engine.ways.remember(run)
    call.job.recv.write_back()
    engine.took = (run.kernel, "peers")
