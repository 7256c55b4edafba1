"""All-reduce over nodes: reduce within each node, all-reduce among one rank of each, broadcast within each.

P ranks on H nodes, S bytes: the network carries 2 (H - 1)/H S for each node, as few as possible, whatever the number
of ranks on a node; shared memory carries the rest.
"""

import numpy as np

from psgd.collectives.algorithms import intranode, recursive_doubling, ring
from psgd.collectives.algorithms.channel import Channel
from psgd.collectives.arguments.call import Call
from psgd.collectives.arguments.operations import SUM_
from psgd.collectives.mpi.wait import Steps
from psgd.collectives.shm.shared_channel import SharedChannel

_SMALL_BYTES = 16 * 1024


def allreduce(shared: SharedChannel, leaders: Channel, call: Call, number: int, ranks: int, segment: int) -> Steps:
    """Runs an all-reduce whose descriptor is filled. Each node's ranks share memory.

    Args:
        shared: with the ranks of this node.
        leaders: between the first ranks of the nodes; not used on others.
        call: an Allreduce.
        number: of the call, the same on all ranks.
        ranks: on all nodes.
        segment: elements of a segment on the network.
    """
    node = shared.node
    assert call.op is not None and call.send is not None and call.recv is not None
    op = SUM_ if call.op.mean else call.op
    leading = node.rank == 0
    inner = Call("Reduce", kind=call.kind, op=op, send=call.send, recv=call.recv if leading else None, count=call.count)
    if node.size > 1:
        yield from intranode.run(shared, inner, _method(call.nbytes))
    elif call.send is not call.recv:
        call.recv[:] = call.send
    if leading:
        leaders.begin(shared.descriptor, number)
        if call.nbytes <= _SMALL_BYTES:
            yield from recursive_doubling.allreduce(leaders, call.recv, call.recv, op)
        else:
            yield from ring.allreduce(leaders, call.recv, call.recv, op, segment)
        call.op.finish(call.recv, ranks)
    if node.size > 1:
        data = call.recv.view(np.uint8)
        nothing = [0] * node.size
        lengths = [data.size, *nothing[1:]]
        outer = Call(
            "Bcast", kind=call.kind, send=data if leading else None, recv=data, starts=nothing, lengths=lengths
        )
        yield from intranode.run(shared, outer, _method(call.nbytes))


def _method(nbytes: int) -> str:
    return "inline" if nbytes <= _SMALL_BYTES else "direct"
