"""What the optimizer does before updates are encoded.

What a codec keeps for later is late, so an optimizer after it would act on late gradients. It comes before the codec
instead, on each worker: weight decay, clipping and momentum on the worker's own gradient (the momentum correction of
Lin et al. 2018). After it there is plain SGD.
"""

import math

import numpy as np
from numpy.typing import NDArray

from psgd.compression.options import Compression
from psgd.kernels import exact_squares, momentum_direction
from psgd.kernels.codecs import sparse
from psgd.optim.optimizer import OptimizerOptions, clipped

Vector = NDArray[np.floating]


class BeforeEncoding:
    """A worker's part of the optimizer: learning rate, clipping, weight decay and momentum.

    Args:
        compression: says how much; a codec that has momentum itself is given it, not this.
        params: whose size and dtype the vectors have.
        optimizer: the run's. A worker clips its own gradient to `clip_norm` over the square root of `workers` (Lin et
            al. 2018, section 3.3).
        workers: how many there are.

    Attributes:
        velocity: kept from step to step; empty without momentum.
        lr: learning rate of the newest step.
    """

    def __init__(self, compression: Compression, params: Vector, optimizer: OptimizerOptions, workers: int) -> None:
        self.lr = optimizer.schedule(0)
        self._optimizer = optimizer
        self._factor = 0.0 if compression.codec_has_momentum else compression.factor
        self._decay = compression.weight_decay
        self._clip = optimizer.clip_norm / math.sqrt(workers)
        self.velocity: Vector = np.zeros(params.size if self._factor else 0, params.dtype)
        none = np.zeros(0, params.dtype)
        momentum_direction.direction(none, none, none, none, 1.0, 0.0, 0.0, 1.0)
        exact_squares.squares(none)
        sparse.look(none)

    def begin(self, position: float) -> float:
        """A step begins.

        Args:
            position: samples applied before, for the schedule.

        Returns:
            What the direction is multiplied by to be a change of the parameters.
        """
        self.lr = self._optimizer.schedule(position)
        return -self.lr * self._optimizer.reduction_factor

    def __call__(self, out: Vector, grads: Vector, params: Vector, rate: float) -> bool:
        """`out = rate * (momentum of the clipped gradient with weight decay)`.

        Where that is not finite, or 2^100 and more, though the gradient was, training has diverged: momentum starts
        again at 0, and `out` is not to be used.

        Args:
            out: written; not `grads`.
            grads: finite; not changed.
            params: what they were computed on.
            rate: that of `begin` or a part of it for a change of the parameters, 1 for a gradient.

        Returns:
            Whether `out` can be encoded.
        """
        scale = clipped(1.0, self._optimizer.sum_of_squares(grads), self._clip) if self._clip else 1.0
        momentum_direction.direction(out, grads, params, self.velocity, scale, self._decay, self._factor, rate)
        if sparse.look(out) >= 0:
            return True
        self.velocity.fill(0)
        return False
