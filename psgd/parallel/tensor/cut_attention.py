"""Attention cut by heads: each rank has some of them, between columns of one linear layer and rows of another."""

from dataclasses import KW_ONLY, dataclass, replace

from psgd.collectives import Communicator
from psgd.nn.layer import ParameterSpec, Room, Shape
from psgd.nn.layers.attention import Attention, AttentionState, Heads
from psgd.parallel.tensor.cut_linear import ColumnLinear, RowLinear
from psgd.parallel.tensor.layouts import SplitAlong


@dataclass(frozen=True)
class CutAttention(Attention):
    """Attention of which each rank computes some heads, any number of them at all. Input and output are replicated.

    Attributes:
        comm: the ranks, no more than heads.
    """

    _: KW_ONLY
    comm: Communicator

    def parts(self, shape: Shape) -> tuple[ColumnLinear, Heads, RowLinear]:
        """This rank's parts of the three layers, for whole inputs of `shape`."""
        make, _, join = super().parts(shape)
        each = shape[1] // self.heads
        mine = SplitAlong().shares(self.heads, self.comm.size)[self.comm.rank]
        return (
            ColumnLinear(make.units, init=make.init, comm=self.comm, inputs=shape[1], after=SplitAlong(block=3 * each)),
            Heads(len(mine)),
            RowLinear(join.units, comm=self.comm, inputs=shape[1], before=SplitAlong(block=each)),
        )

    def weights(self, shape: Shape) -> tuple[ParameterSpec, ...]:
        """Those of the whole layer, of which this rank has a part."""
        make, _, join = self.parts(shape)
        parts = (*make.weights(shape), *join.weights(shape))
        return tuple(
            replace(whole, shape=part.shape, part=part.part)
            for whole, part in zip(Attention(self.heads).weights(shape), parts, strict=True)
        )

    def allocate(self, room: Room) -> AttentionState:
        """Makes the buffers. Collective, as the ranks share those that they sum in."""
        make, heads, join = self.parts(room.shape)
        made = replace(room, shape=make.output_shape(room.shape), wants_dx=room.trains)
        joined = replace(made, shape=heads.output_shape(made.shape))
        return AttentionState(make.allocate(room), heads.allocate(made), join.allocate(joined))
