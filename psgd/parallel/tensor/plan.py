"""How a list of layers is cut over ranks: the cheapest way, by what is sent, that leaves no linear layer whole."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psgd.collectives import Communicator
from psgd.kernels.errors import UsageError
from psgd.nn.layer import Layer, Shape
from psgd.nn.layers.attention import Attention
from psgd.nn.layers.embedding import Embedding, Unembedding
from psgd.nn.layers.gelu import GELU
from psgd.nn.linear import Linear
from psgd.nn.relu import ReLU
from psgd.nn.residual import Residual
from psgd.parallel.tensor.cut_attention import CutAttention
from psgd.parallel.tensor.cut_linear import ColumnLinear, RowLinear
from psgd.parallel.tensor.layouts import FEATURES, REPLICATED, Partial, Replicated, TensorLayout
from psgd.parallel.tensor.vocabulary import CutEmbedding, CutUnembedding

_BY_ELEMENT = (ReLU, GELU)
"""Layers that take any part of a sample's features."""


@dataclass(frozen=True)
class Way:
    """One way to carry out a layer.

    Attributes:
        layer: that does it.
        before: how its input lies.
        after: how its output lies.
        sent: elements that a rank sends for each sample, in units of (ranks - 1) / ranks.
    """

    layer: Layer[Any]
    before: TensorLayout
    after: TensorLayout
    sent: int


def plan(
    layers: Sequence[Layer[Any]],
    shape: Sequence[int],
    comm: Communicator,
    cuts: Collection[int] = (),
    *,
    loss: bool = False,
) -> list[Layer[Any]]:
    """Cuts layers over the ranks of `comm`, which see the same samples.

    Linear layers are cut by columns or rows, each with the collectives before and after it that send least, attention
    by heads, embeddings and scores by vocabulary; those in a `Residual` too. A layer with too few inputs and units,
    heads or tokens for the ranks, and every other layer, is carried out by all ranks alike.

    Args:
        layers: of a whole model.
        shape: of one sample.
        comm: the ranks.
        cuts: layers at which a stage of a pipeline begins.
        loss: the layers are a `Model`'s: where they end in the scores of a vocabulary, the loss is cut too, and no rank
            has all scores of a token.

    Returns:
        As many layers, for `Stage` or `Model`. Samples, outputs, what passes from stage to stage, and the gradients of
        each are the same on all ranks, but for such scores. Parameters have the names of the given ones, and the same
        first values.

    Raises:
        UsageError: shapes that do not fit, or a cut where there is no layer.
    """
    layers, shape = tuple(layers), tuple(shape)
    if wrong := [cut for cut in cuts if not 0 < cut < len(layers)]:
        raise UsageError(f"plan: cuts: expected layers from 1 to {len(layers) - 1}, got {wrong[0]}")
    if comm.size == 1:
        return list(layers)
    cut = _cheapest(layers, shape, comm, cuts, False)
    if loss and isinstance(cut[-1], CutUnembedding):
        cut[-1] = replace(cut[-1], after=FEATURES)
    return cut


def _cheapest(
    layers: Sequence[Layer[Any]], shape: Shape, comm: Communicator, cuts: Collection[int], wants_dx: bool
) -> list[Layer[Any]]:
    """Goes through the layers, and keeps for each layout of what lies between two of them the cheapest way there."""
    best: dict[TensorLayout, tuple[int, list[Layer[Any]]]] = {REPLICATED: (0, [])}
    for index, layer in enumerate(layers):
        if index in cuts:
            best, wants_dx = {REPLICATED: best[REPLICATED]}, True
        following: dict[TensorLayout, tuple[int, list[Layer[Any]]]] = {}
        for way in _ways(layer, shape, comm, wants_dx):
            if way.before in best:
                sent, chosen = best[way.before]
                if way.after not in following or sent + way.sent < following[way.after][0]:
                    following[way.after] = (sent + way.sent, [*chosen, way.layer])
        wants_dx = wants_dx or bool(layer.weights(shape))
        shape, best = layer.output_shape(shape), following
    return best[REPLICATED][1]


def _ways(layer: Layer[Any], shape: Shape, comm: Communicator, wants_dx: bool) -> list[Way]:
    """All ways of a layer for whole samples of `shape`."""
    if type(layer) is Linear:
        return _of_linear(layer, shape, comm, wants_dx)
    if type(layer) is Attention and layer.heads >= comm.size:
        return [_only(CutAttention(layer.heads, comm=comm))]
    if type(layer) is Embedding and layer.vocabulary >= comm.size:
        return [_only(CutEmbedding(layer.vocabulary, layer.width, comm=comm))]
    if type(layer) is Unembedding and layer.vocabulary >= comm.size:
        return [_only(CutUnembedding(layer.vocabulary, layer.tied, comm=comm))]
    ways = [_only(layer)]
    if isinstance(layer, _BY_ELEMENT):
        ways.append(Way(layer, FEATURES, FEATURES, 0))
    if isinstance(layer, Residual):
        ways = [replace(ways[0], layer=Residual(tuple(_cheapest(layer.layers, shape, comm, (), True))))]
    return ways


def _only(layer: Layer[Any]) -> Way:
    """The one way of a layer between replicated samples, whose costs need no comparison."""
    return Way(layer, REPLICATED, REPLICATED, 0)


def _of_linear(layer: Linear, shape: Shape, comm: Communicator, wants_dx: bool) -> list[Way]:
    ways: list[Way] = []
    outputs = layer.output_shape(shape)
    for kind in (ColumnLinear, RowLinear):
        if (layer.units if kind is ColumnLinear else shape[-1]) < comm.size:
            continue
        for before in (REPLICATED, FEATURES):
            for after in (REPLICATED, FEATURES):
                if FEATURES in (before, after) and min(shape[-1], layer.units) < comm.size:
                    continue
                cut = kind(layer.units, layer.relu, layer.init, comm=comm, inputs=shape[-1], before=before, after=after)
                sent = _sent(before, cut.lies.takes, shape) + _sent(cut.lies.gives, after, outputs)
                sent += _sent(after, cut.lies.dgives, outputs) + wants_dx * _sent(cut.lies.dtakes, before, shape)
                ways.append(Way(cut, before, after, sent))
    return ways or [_only(layer)]


def _sent(source: TensorLayout, target: TensorLayout, shape: Shape) -> int:
    """Elements that a conversion sends for each sample: an all-reduce is a reduce-scatter and an all-gather."""
    if source == target or isinstance(source, Replicated):
        return 0
    return math.prod(shape) * (2 if isinstance(source, Partial) and isinstance(target, Replicated) else 1)
