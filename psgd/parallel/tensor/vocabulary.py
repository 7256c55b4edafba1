"""Embedding, scores and loss cut by vocabulary: each rank has a range of the tokens."""

import functools
import math
from dataclasses import KW_ONLY, dataclass, replace

import numpy as np

from psgd.collectives import Communicator
from psgd.kernels.array import Array, array_module
from psgd.kernels.errors import DataError
from psgd.kernels.layers.loss_part import FACTS, part_facts, part_gradient
from psgd.kernels.layers.matmul import matmul
from psgd.kernels.layers.table_part import embed_part
from psgd.kernels.layers.table_rows import embed_backward
from psgd.nn.layer import Arrays, ParameterSpec, Room, Shape
from psgd.nn.layers.embedding import Embedding, Unembedding
from psgd.parallel.tensor.convert import Conversion, conversion
from psgd.parallel.tensor.layouts import FEATURES, PARTIAL, REPLICATED, TensorLayout, local_shape


def _tokens(vocabulary: int, comm: Communicator) -> range:
    """This rank's."""
    mine: range = FEATURES.shares(vocabulary, comm.size)[comm.rank]
    return mine


def _rows_of(spec: ParameterSpec, mine: range) -> ParameterSpec:
    """A range of a table's rows."""
    return replace(spec, shape=(len(mine), spec.shape[1]), part=(spec.shape, (mine.start, 0)))


@dataclass
class CutEmbeddingState:
    """Buffers of one context.

    Attributes:
        sum: of what the ranks have found.
        tokens: counted from this rank's first, which backward needs again.
        n: how many of them.
        dx: zeros, or None.
    """

    sum: Conversion
    tokens: Array
    dx: Array
    n: int = 0


@dataclass(frozen=True)
class CutEmbedding(Embedding):
    """An embedding of which each rank has a range of the rows. Its output has the bits of the whole layer's.

    Attributes:
        comm: the ranks, no more than tokens.
    """

    _: KW_ONLY
    comm: Communicator

    def weights(self, shape: Shape) -> tuple[ParameterSpec, ...]:
        return (_rows_of(super().weights(shape)[0], _tokens(self.vocabulary, self.comm)),)

    def allocate(self, room: Room) -> CutEmbeddingState:  # type: ignore[override]
        """Makes the buffers. Collective, as the ranks share those that they sum in."""
        summed = conversion(self.comm, PARTIAL, REPLICATED, (*room.shape, self.width), room)
        dx = room.zeros(*room.shape) if room.wants_dx else None
        return CutEmbeddingState(summed, room.xp.empty(room.batch * math.prod(room.shape), room.dtype), dx)

    def forward(self, state: CutEmbeddingState, x: Array, params: Arrays) -> Array:  # type: ignore[override]
        first = _tokens(self.vocabulary, self.comm).start
        state.n, y = x.size, state.sum.source[: len(x)]
        mine = array_module(x).subtract(x.reshape(-1), x.dtype.type(first), out=state.tokens[: x.size])
        embed_part(mine, params[0], y.reshape(-1, self.width), first, self.vocabulary)
        return state.sum(y)

    def backward(  # type: ignore[override]
        self, state: CutEmbeddingState, dy: Array, params: Arrays, grads: Arrays
    ) -> Array:
        """Writes the sum of dy's rows by token, of this rank's tokens."""
        embed_backward(state.tokens[: state.n], dy.reshape(-1, self.width), grads[0])
        return None if state.dx is None else state.dx[: len(dy)]


class VocabularyLoss:
    """Softmax cross-entropy of logits of which each rank has some classes: a `psgd.nn.layer.CutLoss`.

    The ranks exchange four numbers for each row. All get the same loss, bit for bit. Collective; on a GPU it waits.

    Args:
        comm: the ranks.
        classes: number of all, at least one for each rank.

    Attributes:
        classes: as given.
    """

    def __init__(self, comm: Communicator, classes: int) -> None:
        self.classes, self._comm, self._first = classes, comm, _tokens(classes, comm).start
        self._mine: Array = None
        self._everyones: Array = None

    def __call__(self, logits: Array, labels: Array, scale: float) -> tuple[float, int]:
        """Does to this rank's logits what `softmax_cross_entropy` does to all.

        Raises:
            DataError: a label that is no class; on all ranks, as they have the same.
        """
        n, ranks, xp = len(logits), self._comm.size, array_module(logits)
        if not isinstance(self._mine, xp.ndarray) or self._mine.size < FACTS * n:
            self._mine, self._everyones = xp.empty(FACTS * n), xp.empty(ranks * FACTS * n)
        mine, everyones = self._mine[: FACTS * n], self._everyones[: ranks * FACTS * n]
        bad = part_facts(logits, labels, self._first, self.classes, mine.reshape(FACTS, n))
        if bad >= 0:
            raise DataError(f"label {int(labels[bad])} in row {bad} of the batch is not in 0..{self.classes - 1}")
        self._comm.Allgather(mine, everyones)
        return part_gradient(logits, labels, self._first, scale, everyones.reshape(ranks, FACTS, n), self._comm.rank)

    def predict(self, logits: Array) -> Array:
        """Returns the class of each row's largest logit of all ranks, the first of equal ones. Allocates."""
        xp, rows, ranks = array_module(logits), len(logits), self._comm.size
        places = logits.argmax(axis=1)
        mine = xp.stack([logits[xp.arange(rows), places].astype(np.float64), (places + self._first).astype(np.float64)])
        everyones = xp.empty((ranks, 2, rows))
        self._comm.Allgather(mine.reshape(-1), everyones.reshape(-1))
        best = everyones[:, 0].argmax(axis=0)
        return everyones[best, 1, xp.arange(rows)].astype(np.int64)


@dataclass
class CutUnembeddingState:
    """Buffers of one context.

    Attributes:
        y: this rank's scores.
        leave: from these to the output.
        enter_back: from the output's gradient to theirs.
        sum: of what the ranks have of the input's gradient; None where that is not wanted.
        rows: of the input, which backward needs again.
        dy: of the scores, as rows, which the second half of backward needs.
    """

    y: Array
    leave: Conversion
    enter_back: Conversion
    sum: Conversion | None
    rows: Array = None
    dy: Array = None


@dataclass(frozen=True)
class CutUnembedding(Unembedding):
    """Scores by a table of which each rank has a range of the rows. Its input is replicated.

    Attributes:
        comm: the ranks, no more than tokens.
        after: how the scores lie: replicated, or split by tokens, where the model's loss is cut.
    """

    _: KW_ONLY
    comm: Communicator
    after: TensorLayout = REPLICATED

    @property
    def loss(self) -> VocabularyLoss | None:
        return None if self.after == REPLICATED else self._loss

    @functools.cached_property
    def _loss(self) -> VocabularyLoss:
        return VocabularyLoss(self.comm, self.vocabulary)

    def output_shape(self, shape: Shape) -> Shape:
        return local_shape(self.after, super().output_shape(shape), self.comm.rank, self.comm.size)

    def weights(self, shape: Shape) -> tuple[ParameterSpec, ...]:
        return (_rows_of(super().weights(shape)[0], _tokens(self.vocabulary, self.comm)),)

    def allocate(self, room: Room) -> CutUnembeddingState:  # type: ignore[override]
        """Makes the buffers. Collective, as the ranks share those that they sum in."""
        whole = super().output_shape(room.shape)

        def way(source: TensorLayout, target: TensorLayout, shape: Shape) -> Conversion:
            return conversion(self.comm, source, target, shape, room)

        y = room.empty(*local_shape(FEATURES, whole, self.comm.rank, self.comm.size))
        leave, enter_back = way(FEATURES, self.after, whole), way(self.after, FEATURES, whole)
        return CutUnembeddingState(
            y, leave, enter_back, way(PARTIAL, REPLICATED, room.shape) if room.wants_dx else None
        )

    def forward(self, state: CutUnembeddingState, x: Array, params: Arrays) -> Array:  # type: ignore[override]
        y = state.y[: len(x)]
        state.rows = x.reshape(-1, x.shape[-1])
        matmul(state.rows, params[0].T, y.reshape(-1, y.shape[-1]))
        return state.leave(y)

    def backward_input(  # type: ignore[override]
        self, state: CutUnembeddingState, dy: Array, params: Arrays, grads: Arrays
    ) -> Array:
        """Returns dy times the table, summed over the ranks."""
        dy = state.enter_back(dy)
        state.dy = dy.reshape(-1, dy.shape[-1])
        if state.sum is None:
            return None
        dx = state.sum.source[: len(dy)]
        matmul(state.dy, params[0], dx.reshape(-1, dx.shape[-1]))
        return state.sum(dx)
