"""A stage that ends in one logit for each class, of each sample or each token: what is trained and evaluated."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.kernels.layers.loss import softmax_cross_entropy
from psgd.nn.layer import Layer
from psgd.nn.stage import Context, OnReady, Stage

LossOf = Callable[[Array, Array, float], tuple[float, int]]
"""A loss: turns logits, (n, classes), into `scale` x the gradient of the loss summed over the samples, in place.

It takes int64 labels, and returns that sum and how many samples were right. Of text, each token is a sample.
"""
Tally = Callable[[Array, Array], None]
"""What counts how samples were classified: takes labels and predictions, (n,) each, on the device."""


class Model(Stage):
    """A stage for classification, trained with softmax cross-entropy.

    Attributes:
        classes: number of logits, of all ranks where several share them.
        tokens: what is classified of each sample: 1, or its tokens where the output is (tokens, classes). Loss and
            share of right answers are then means over all tokens.
    """

    def __init__(self, layers: Sequence[Layer[Any]], input_shape: Sequence[int], dtype: Any = np.float32) -> None:
        """Fits the layers together.

        Raises:
            UsageError: shapes that do not fit, no layer with parameters, or another dtype.
        """
        super().__init__(layers, input_shape, dtype)
        if len(self.output_shape) not in (1, 2) or not self.layout.size:
            raise UsageError(
                "model: needs a layer with parameters, and one flat output for each sample, or each token of samples"
            )
        *tokens, scores = self.output_shape
        cut = self.layers[-1].loss
        self.classes = scores if cut is None else cut.classes
        self.tokens = math.prod(tokens)

    def context(self, batch: int, wants_dx: bool = False, xp: Any = None, trains: bool = True) -> Context:
        """Makes a stage's buffers, and those of the loss.

        Raises:
            UsageError: `batch` below 1.
        """
        ctx = super().context(batch, wants_dx, xp, trains)
        ctx.labels = ctx.xp.empty((batch, *self.output_shape[:-1]), np.int64)
        if trains and self.layers[-1].reads_output:
            ctx.dlogits = ctx.xp.empty((batch, *self.output_shape), self.dtype)
        return ctx

    def logits(self, ctx: Context, x: Array) -> Array:
        """Returns (n, classes) as `forward` does, for the caller to write to: no backward pass follows.

        Nothing is drawn: no element is dropped.
        """
        drew, ctx.draws.on = ctx.draws.on, False
        try:
            return self._run(ctx, x)
        finally:
            ctx.draws.on = drew

    def gradient(
        self,
        ctx: Context,
        x: Array,
        y: Array,
        on_ready: OnReady | None = None,
        loss_of: LossOf = softmax_cross_entropy,
        *,
        batch_size: int | None = None,
        accumulate: bool = False,
    ) -> float:
        """Forward, loss and backward: returns the mean loss over x and overwrites the bound grads with its gradient.

        A batch in parts: call this for each part with the whole `batch_size`, for the first one without
        `accumulate` and for the others with it. Grads are then the gradient of the mean over the whole batch, to
        rounding, and the sum of what is returned is its mean loss.

        Args:
            ctx: made by this model.
            x: as `forward`.
            y: (n,) integer labels on the device, or (n, tokens).
            on_ready: as `backward`.
            loss_of: called for loss and gradient, as `softmax_cross_entropy`, unless the last layer has its own.
            batch_size: what loss and gradient are divided by; None: the samples of x.
            accumulate: as `backward`.

        Raises:
            UsageError: as `forward` and `backward`, or y of a wrong shape or dtype.
            DataError: a label out of range; nothing was written to grads.
        """
        if not self._grads:
            raise UsageError("gradient: needs bound grads")
        self.forward(ctx, x)
        dy, loss = self.loss(ctx, y, loss_of, batch_size)
        self.backward(ctx, dy, on_ready, accumulate)
        return loss

    def loss(
        self, ctx: Context, y: Array, loss_of: LossOf = softmax_cross_entropy, batch_size: int | None = None
    ) -> tuple[Array, float]:
        """Between `forward` and `backward`: the gradient of the loss for the logits, a buffer of `ctx`, and the loss.

        Args:
            ctx: after one `forward`; the output may be overwritten.
            y: as `gradient`.
            loss_of: as `gradient`.
            batch_size: as `gradient`.

        Raises:
            UsageError: no forward before, or y of a wrong shape or dtype.
            DataError: a label out of range.
        """
        if ctx.output is None:
            raise UsageError("loss: needs a forward pass on this context before it")
        if ctx.draws.wanted and not ctx.draws.on:
            raise UsageError(
                "gradient: the model has dropout, so it needs ctx.draw(key, samples) before the forward pass"
            )
        dy, n = ctx.output, len(ctx.output)
        if ctx.dlogits is not None:
            dy = ctx.dlogits[:n]
            dy[...] = ctx.output
        samples = n if batch_size is None else batch_size
        count = samples * self.tokens
        loss_of = self.layers[-1].loss or loss_of
        loss, _ = loss_of(dy.reshape(-1, dy.shape[-1]), self._labels(ctx, y, n).reshape(-1), 1 / count)
        return dy, loss / count

    def evaluate(self, ctx: Context, x: Array, y: Array, tally: Tally | None = None) -> tuple[float, float]:
        """Returns how many of any number of samples are classified right, and their summed loss.

        A sample of tokens counts by the share of its tokens that are, and by its mean loss.

        Args:
            ctx: made by this model.
            x: any number of samples, as `forward`.
            y: as `gradient`.
            tally: is told of each part's labels and predictions.
        """
        correct, loss = 0, 0.0
        cut = self.layers[-1].loss
        loss_of = cut or softmax_cross_entropy
        for start in range(0, len(x), ctx.batch):
            part = slice(start, min(start + ctx.batch, len(x)))
            z = self.logits(ctx, x[part])
            labels = self._labels(ctx, y[part], len(z)).reshape(-1)
            scores = z.reshape(-1, z.shape[-1])
            # before the loss overwrites the scores
            predicted = None if tally is None else scores.argmax(axis=1) if cut is None else cut.predict(scores)
            part_loss, part_correct = loss_of(scores, labels, 1.0)
            if tally is not None:
                tally(labels, predicted)
            correct, loss = correct + part_correct, loss + part_loss
        return (correct, loss) if self.tokens == 1 else (correct / self.tokens, loss / self.tokens)

    def _labels(self, ctx: Context, y: Array, n: int) -> Array:
        """Copies y to the context's int64 labels, so that one compiled loss serves all integer types."""
        shape = n, *self.output_shape[:-1]
        if y.shape != shape or y.dtype.kind not in "iu" or not isinstance(y, ctx.xp.ndarray):
            raise UsageError(
                f"model: y: expected integers of shape {shape} on {ctx.xp.__name__}, got {y.dtype} {y.shape}"
            )
        if y.base is ctx.labels:  # the batches were gathered there
            return y
        labels = ctx.labels[:n]
        labels[...] = y
        return labels
