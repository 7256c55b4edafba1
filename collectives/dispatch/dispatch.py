"""Which steps a call takes: through the node's shared memory where all ranks are on one node, else over messages."""

from mpi4py import MPI

from psgd.collectives.algorithms import (
    barrier,
    binomial,
    chain,
    hierarchical,
    intranode,
    native,
    rabenseifner,
    recursive_doubling,
    ring,
)
from psgd.collectives.arguments import descriptor
from psgd.collectives.arguments.call import Call
from psgd.collectives.dispatch.engine import Engine
from psgd.collectives.mpi.agreement import Mismatch
from psgd.collectives.mpi.wait import Steps
from psgd.kernels.errors import UsageError

SEGMENT_BYTES = 256 * 1024  # at most
SEGMENTS = 16  # of a chunk at least, so that a ring stands still for a small part of each step only
NODE_SEGMENT_BYTES = 512 * 1024  # where all ranks are on one node: MPI copies once, and each message costs the same
SHORTEST_BYTES = 32 * 1024
# Open MPI sends up to 64 KiB over TCP, its header included, without asking. Longer messages both ways often went
# one way at a time (docs/hosts.md): likely as the answers that they wait for queue behind data of the other direction.
EAGER_BYTES = 60 * 1024
_ASKS = MPI.get_vendor()[0] == "Open MPI"
_MEETINGS = ("Barrier", "empty")
SHARED = ("inline", "slots", "direct")
MESSAGES = {
    "Allreduce": ("ring", "recursive_doubling", "rabenseifner", "hierarchical", "native"),
    "Reduce_scatter": ("ring", "native"),
    "Reduce_scatter_block": ("ring", "native"),
    "Allgather": ("ring", "native"),
    "Allgatherv": ("ring", "native"),
    "Bcast": ("binomial", "chain", "native"),
    "Reduce": ("binomial", "native"),
    "Barrier": (),
    "empty": (),
}


def steps(engine: Engine, verb: str, call: Call | None, text: str, algorithm: str, sign: int) -> Steps:
    """Carries out one call, on all ranks alike.

    Args:
        engine: whose turn it is.
        verb: the collective.
        call: what this rank passed; None where that was wrong.
        text: what was wrong with it.
        algorithm: to use, of descriptor.ALGORITHMS, "?" where `call` is None.
        sign: signature of the call.

    Raises:
        AgreedError: ranks disagree or some rank's arguments were wrong.
    """
    engine.failures.text = text
    if engine.shared is not None:
        engine.shared.prepared = None
    if call is None:
        descriptor.fill(engine.descriptor, descriptor.signature(verb), 0, (), 0)
    else:
        descriptor.fill(engine.descriptor, sign, call.count, call.shape, call.mark)
    if engine.checks:
        yield from engine.check(text)
    if call is not None and call.job is not None:
        yield from _on_device(engine, call)
    elif engine.local:
        yield from _on_node(engine, call, text, algorithm)
    else:
        if call is None:
            raise Mismatch(text)
        if algorithm == "hierarchical":
            yield from _over_nodes(engine, call)
        else:
            engine.channel.begin(engine.descriptor, engine.calls)
            yield from _over_messages(engine, call, algorithm)
    assert call is not None
    call.done()


def _on_device(engine: Engine, call: Call) -> Steps:
    from psgd.collectives.device import execute
    from psgd.collectives.device.context import DeviceContext

    if engine.local:
        assert engine.shared is not None
        yield from intranode.agree(engine.shared)
    else:
        engine.channel.begin(engine.descriptor, engine.calls)
        yield from barrier.barrier(engine.channel)
    if engine.context is None:
        engine.context = DeviceContext.create(engine.comm, engine.one_node and engine.shared is not None)
    engine.took = ("ring", (yield from execute.run(engine.context, call)))


def _on_node(engine: Engine, call: Call | None, text: str, algorithm: str) -> Steps:
    assert engine.shared is not None
    if call is None:
        engine.shared.report(text)
        yield from intranode.agree(engine.shared)
    elif call.verb in _MEETINGS or algorithm not in SHARED:
        yield from intranode.agree(engine.shared)
        engine.took = ("inline", "shared")
        if call.verb not in _MEETINGS:
            engine.channel.begin(None)
            yield from _over_messages(engine, call, algorithm)
    else:
        engine.took = None
        yield from intranode.run(engine.shared, call, algorithm)


def _over_nodes(engine: Engine, call: Call) -> Steps:
    assert engine.shared is not None
    leaders = engine.leaders or engine.channel
    segment = _segment(engine, call)
    yield from hierarchical.allreduce(engine.shared, leaders, call, engine.calls, engine.size, segment)
    engine.took = ("hierarchical", "messages")


def _over_messages(engine: Engine, call: Call, algorithm: str) -> Steps:
    engine.took = (algorithm, "mpi" if algorithm == "native" else "messages")
    if algorithm == "native":
        if engine.blocking:
            _native(engine, call)
        else:
            yield from _native_later(engine, call)
        return
    channel, send, recv, op = engine.channel, call.send, call.recv, call.op
    if call.verb in _MEETINGS:
        yield from barrier.barrier(channel)
    elif call.verb == "Allreduce":
        assert send is not None and recv is not None and op is not None
        if algorithm == "ring":
            yield from ring.allreduce(channel, send, recv, op, _segment(engine, call))
        elif algorithm == "rabenseifner":
            yield from rabenseifner.allreduce(channel, send, recv, op)
        else:
            yield from recursive_doubling.allreduce(channel, send, recv, op)
    elif op is None:
        yield from _move(engine, call, algorithm)
    elif call.verb == "Reduce":
        assert send is not None
        yield from binomial.reduce(channel, send, recv, op, call.root)
    else:
        assert send is not None and recv is not None
        yield from ring.reduce_scatter(channel, send, recv, call.ranges(engine.size), op, _segment(engine, call))


def _move(engine: Engine, call: Call, algorithm: str) -> Steps:
    """What moves data without combining any."""
    assert call.recv is not None
    if call.verb != "Bcast":
        intranode.copy_own(call, call.ranges(engine.size)[engine.rank])
        yield from ring.allgather(engine.channel, call.recv, call.ranges(engine.size), _segment(engine, call))
    elif algorithm == "chain":
        yield from chain.bcast(engine.channel, call.recv, call.root, SEGMENT_BYTES // call.itemsize)
    else:
        yield from binomial.bcast(engine.channel, call.recv, call.root)


def _native_later(engine: Engine, call: Call) -> Steps:
    """The same for the verbs that can be started, without blocking."""
    send, recv, op = call.send, call.recv, call.op
    assert send is not None and recv is not None
    if op is None:
        yield from native.start_allgather(engine.comm, send, recv)
    elif call.verb == "Allreduce":
        yield from native.start_allreduce(engine.comm, send, recv, op)
    else:
        yield from native.start_reduce_scatter(engine.comm, send, recv, list(call.lengths), op)


def _native(engine: Engine, call: Call) -> None:
    comm, send, recv, op = engine.comm, call.send, call.recv, call.op
    counts, starts = list(call.lengths), list(call.starts or ())
    if call.verb == "Barrier":
        native.barrier(comm)
    elif call.verb == "Bcast":
        assert recv is not None
        native.bcast(comm, recv, call.root)
    elif call.verb in {"Allgather", "Allgatherv"}:
        assert send is not None and recv is not None
        if call.verb == "Allgather":
            native.allgather(comm, send, recv)
        else:
            native.allgatherv(comm, send, recv, counts, starts)
    else:
        assert send is not None and op is not None
        if call.verb == "Reduce":
            native.reduce(comm, send, recv, op, call.root)
        elif call.verb == "Allreduce":
            assert recv is not None
            native.allreduce(comm, send, recv, op)
        else:
            assert recv is not None
            native.reduce_scatter(comm, send, recv, counts, op)


def _segment(engine: Engine, call: Call) -> int:
    """Elements of a ring's segment, the same on all ranks."""
    if engine.one_node:
        return NODE_SEGMENT_BYTES // call.itemsize
    if _ASKS:
        return EAGER_BYTES // call.itemsize
    parts = call.nbytes // (engine.size * SEGMENTS)
    return min(SEGMENT_BYTES, max(SHORTEST_BYTES, parts)) // call.itemsize


def available(verb: str, engine: Engine) -> list[str]:
    """The algorithms that a collective has on a communicator."""
    known = [*(SHARED if engine.local else ()), *MESSAGES[verb]]
    if "hierarchical" in known and (engine.local or engine.shared is None):
        known.remove("hierarchical")
    return known


def check_algorithm(verb: str, algorithm: str, engine: Engine, call: Call) -> None:
    """Refuses an algorithm that a collective does not have here.

    Raises:
        UsageError: naming those that it has.
    """
    known = available(verb, engine)
    if call.job is not None:
        known = ["ring"]
    elif engine.size == 1:  # nothing to choose, but a name that no cluster has is wrong here too
        known = [*SHARED, *MESSAGES[verb]]
    elif engine.local and not intranode.fits_inline(call):
        known.remove("inline")
    if call.op is not None and call.op.code < 0:
        known = ["native"]
    if algorithm not in known:
        why = ""
        if algorithm in descriptor.ALGORITHMS:
            why = ", which this collective, operation, size or placement of ranks does not have"
        raise UsageError(f"algorithm: expected one of {', '.join(known)}, got {algorithm!r}{why}")
