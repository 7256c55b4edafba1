"""Which steps a call takes: through the node's shared memory where all ranks are on one node, else over messages."""

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from psgd.collectives.algorithms import barrier, catalog, intranode
from psgd.collectives.arguments import descriptor
from psgd.collectives.arguments.call import Call
from psgd.collectives.dispatch.engine import Engine
from psgd.collectives.mpi.agreement import Mismatch
from psgd.collectives.mpi.wait import Steps
from psgd.collectives.shm import layout
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


def steps(engine: Engine, verb: str, call: Call | None, text: str, algorithm: str, sign: int) -> Steps:
    """Carries out one call, on all ranks alike.

    Args:
        engine: whose turn it is.
        verb: the collective.
        call: what this rank passed; None where that was wrong.
        text: what was wrong with it.
        algorithm: to use, of the catalog, "?" where `call` is None.
        sign: signature of the call.

    Raises:
        AgreedError: ranks disagree or some rank's arguments were wrong.
    """
    yield from _announce(engine, verb, call, text, sign)
    if call is None:
        yield from _refuse(engine, text)
        return
    needs = "" if call.verb in _MEETINGS else catalog.ALGORITHMS[algorithm].needs
    if not needs:
        engine.took = ("inline", "shared") if engine.local else ("ring", "messages")
        yield from _meet(engine)
    else:
        # Descriptors are compared before data moves. Shared memory does that by itself, and so do messages whose first
        # ones carry descriptors; where all ranks are here, a look at shared memory spares those. MPI compares nothing,
        # and who is inside it cannot be told of an error, so all ranks compare all descriptors before they enter.
        if engine.local and needs != catalog.NODE:
            yield from _meet(engine)
            engine.channel.begin(None)
        elif needs == catalog.MPI:
            yield from _compare(engine)
        elif needs not in {catalog.NODE, catalog.NODES}:
            engine.channel.begin(engine.descriptor, engine.calls)
        yield from _carry_out(engine, call, algorithm)
    call.done()


def agreement(engine: Engine, verb: str, call: Call | None, text: str, sign: int) -> Steps:
    """Compares the descriptors of a call that is not carried out now, on all ranks alike.

    Args:
        engine: whose turn it is.
        verb: the collective.
        call: what this rank passed; None where that was wrong.
        text: what was wrong with it.
        sign: signature of the call.

    Raises:
        AgreedError: ranks disagree or some rank's arguments were wrong.
    """
    yield from _announce(engine, verb, call, text, sign)
    if call is None:
        yield from _refuse(engine, text)
    else:
        yield from _meet(engine) if engine.local else _compare(engine)


def _announce(engine: Engine, verb: str, call: Call | None, text: str, sign: int) -> Steps:
    """Fills this rank's descriptor; with PSGD_CHECK=1 all ranks compare theirs at once."""
    engine.failures.text = text
    if engine.shared is not None:
        engine.shared.prepared = None
    if call is None:
        descriptor.fill(engine.descriptor, descriptor.signature(verb), 0, (), 0)
    else:
        descriptor.fill(engine.descriptor, sign, call.count, call.shape, call.mark)
    if not engine.published:
        engine.descriptor[layout.CALL] = engine.calls
    if engine.checks:
        yield from engine.check(text)


def _refuse(engine: Engine, text: str) -> Steps:
    """Reports wrong arguments of this rank; all ranks raise the error."""
    if not engine.local:
        raise Mismatch(text)
    assert engine.shared is not None
    engine.shared.report(text)
    yield from intranode.agree(engine.shared)


def _meet(engine: Engine) -> Steps:
    """Ends once all ranks have begun it, with descriptors that agree with those of the ranks that this one met."""
    if engine.local:
        assert engine.shared is not None
        yield from intranode.agree(engine.shared)
    else:
        engine.channel.begin(engine.descriptor, engine.calls)
        yield from barrier.barrier(engine.channel)


def _compare(engine: Engine) -> Steps:
    """As `_meet`, but no rank goes on where any two disagree; unless PSGD_CHECK=1 has seen to that."""
    if not engine.checks:
        yield from engine.check("")


def _carry_out(engine: Engine, call: Call, algorithm: str) -> Steps:
    needs = catalog.ALGORITHMS[algorithm].needs
    function, wanted = catalog.load(algorithm, call.verb)
    if needs == catalog.NODE:
        engine.took = None
    else:
        engine.took = (algorithm, "mpi" if needs == catalog.MPI else "messages")
        if needs == catalog.MESSAGES and call.op is None and call.verb != "Bcast":
            intranode.copy_own(call, call.ranges(engine.size)[engine.rank])
    yield from function(**{name: _ARGUMENTS[name](engine, call, algorithm) for name in wanted})


def _segment(engine: Engine, call: Call) -> int:
    """Elements of a message in a pipeline, the same on all ranks."""
    if call.verb == "Bcast":
        return SEGMENT_BYTES // call.itemsize
    if engine.one_node:
        return NODE_SEGMENT_BYTES // call.itemsize
    if _ASKS:
        return EAGER_BYTES // call.itemsize
    parts = call.nbytes // (engine.size * SEGMENTS)
    return min(SEGMENT_BYTES, max(SHORTEST_BYTES, parts)) // call.itemsize


_ARGUMENTS: dict[str, Callable[[Engine, Call, str], Any]] = {
    "algorithm": lambda engine, call, algorithm: algorithm,
    "blocking": lambda engine, call, algorithm: engine.blocking,
    "call": lambda engine, call, algorithm: call,
    "channel": lambda engine, call, algorithm: engine.channel,
    "comm": lambda engine, call, algorithm: engine.comm,
    "data": lambda engine, call, algorithm: call.recv,
    "leaders": lambda engine, call, algorithm: engine.leaders or engine.channel,
    "number": lambda engine, call, algorithm: engine.calls,
    "op": lambda engine, call, algorithm: call.op,
    "parts": lambda engine, call, algorithm: call.ranges(engine.size),
    "ranks": lambda engine, call, algorithm: engine.size,
    "recv": lambda engine, call, algorithm: call.recv,
    "root": lambda engine, call, algorithm: call.root,
    "segment": lambda engine, call, algorithm: _segment(engine, call),
    "send": lambda engine, call, algorithm: call.send,
    "shared": lambda engine, call, algorithm: engine.shared,
}
"""What an algorithm's function may ask for, by the names of its arguments."""


def available(verb: str, engine: Engine) -> list[str]:
    """The algorithms that a collective has on a communicator."""
    needs = [catalog.MESSAGES, catalog.MPI]
    if engine.local:
        needs.append(catalog.NODE)
    elif engine.shared is not None:
        needs.append(catalog.NODES)
    return catalog.names(verb, *needs)


def check_algorithm(verb: str, algorithm: str, engine: Engine, call: Call) -> None:
    """Refuses an algorithm that a collective does not have here.

    Raises:
        UsageError: naming those that it has.
    """
    known = available(verb, engine)
    if call.job is not None:
        known = ["ring"] if call.job.ring else []
    elif engine.size == 1:  # nothing to choose, but a name that no cluster has is wrong here too
        known = catalog.names(verb)
    elif engine.local and not intranode.fits_inline(call):
        known = [name for name in known if name not in intranode.BEHIND]
    if call.op is not None and call.op.code < 0:
        known = catalog.names(verb, catalog.MPI)
    if algorithm not in known:
        why = ""
        if algorithm in catalog.ALGORITHMS:
            why = ", which does not support this collective, operation, size or placement of ranks"
        raise UsageError(f"algorithm: expected one of {', '.join(known)}, got {algorithm!r}{why}")
