"""All-reduce over nodes: reduce within each node, all-reduce among one rank of each, broadcast within each.

P ranks on H nodes, S bytes: the network carries 2 (H - 1)/H S for each node, as few as possible, whatever the number
of ranks on a node; shared memory carries the rest.
"""

from typing import TYPE_CHECKING

import numpy as np

from psgd.collectives.dispatch import contract
from psgd.collectives.algorithms import recursive_doubling, ring, intranode
from psgd.collectives.arguments.call import Call
from psgd.collectives.arguments.operations import SUM_

if TYPE_CHECKING:
    from psgd.collectives.dispatch.engine import Engine
    from psgd.collectives.mpi.wait import Steps

_SMALL_BYTES = 16 * 1024


def allreduce(engine: "Engine", call: Call, segment: int) -> "Program":
    """Runs an all-reduce whose line is filled. Each node's ranks share memory.

    Args:
        engine: with a node.
        call: an Allreduce.
        segment: elements of a segment on the network.
    """
    assert engine.node is not None and call.op is not None and call.send is not None and call.recv is not None
    op = SUM_ if call.op.mean else call.op
    leading = engine.node.rank == 0
    inner = Call("Reduce", kind=call.kind, op=op, send=call.send, recv=call.recv if leading else None, count=call.count)
    if engine.node.size > 1:
        yield from intranode.run(engine, inner, _method(call.nbytes))
    elif call.send is not call.recv:
        call.recv[:] = call.send
    if leading:
        channel = engine.leaders
        channel.begin(engine.line, engine.calls)
        if call.nbytes <= _SMALL_BYTES:
            yield from recursive_doubling.allreduce(channel, call.recv, call.recv, op)
        else:
            yield from ring.allreduce(channel, call.recv, call.recv, op, segment)
        call.op.finish(call.recv, engine.size)
    if engine.node.size > 1:
        data = call.recv.view(np.uint8)
        nothing = [0] * engine.node.size
        lengths = [data.size, *nothing[1:]]
        outer = Call(
            "Bcast", kind=call.kind, send=data if leading else None, recv=data, starts=nothing, lengths=lengths
        )
        contract.fill(engine.line, contract.signature("Bcast", call.kind), call.count, (), 0)
        yield from intranode.run(engine, outer, _method(call.nbytes))
    engine.took = ("hierarchical", "messages")


def _method(nbytes: int) -> str:
    return "inline" if nbytes <= _SMALL_BYTES else "direct"
