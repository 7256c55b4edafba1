"""What the optimizer does before updates are encoded.

What a codec keeps for later is late, so an optimizer behind it would act on late gradients. It stands before the codec
instead, on each worker: weight decay, clipping and momentum on the worker's own gradient (the momentum correction of
Lin et al. 2018). Behind it there is plain SGD.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.compression.options import Compression
from psgd.kernels import accumulate, momentum_direction
from psgd.kernels.codecs import sparse
from psgd.optim.optimizer import clipped

Vector = NDArray[np.floating]


class BeforeEncoding:
    """A worker's clipping, weight decay and momentum.

    Args:
        compression: says how much; a codec that has momentum itself is given it, not this.
        size: elements.
        dtype: of the vectors.
        clip_norm: the largest norm of a step's mean gradient; a worker clips its own to this over the square root of
            `workers` (Lin et al. 2018, section 3.3). 0 is off.
        workers: how many there are.

    Attributes:
        velocity: kept from step to step; empty without momentum.
    """

    def __init__(self, compression: Compression, size: int, dtype: Any, clip_norm: float, workers: int) -> None:
        self._factor = 0.0 if compression.codec_has_momentum else compression.factor
        self._decay = compression.weight_decay
        self._clip = clip_norm / math.sqrt(workers)
        self.velocity: Vector = np.zeros(size if self._factor else 0, dtype)
        none = np.zeros(0, dtype)
        momentum_direction.direction(none, none, none, none, 1.0, 0.0, 0.0, 1.0)
        accumulate.sum_of_squares(none)
        sparse.look(none)

    def __call__(self, out: Vector, grads: Vector, params: Vector, rate: float) -> bool:
        """`out = rate * (momentum of the clipped gradient with weight decay)`.

        Where that is not finite, or 2^100 and more, though the gradient was, training has diverged: momentum starts
        again at 0, and `out` is not to be used.

        Args:
            out: written; not `grads`.
            grads: finite; not changed.
            params: what they were computed on.
            rate: -lr for a change of the parameters, 1 for a gradient.

        Returns:
            Whether `out` can be encoded.
        """
        scale = clipped(1.0, accumulate.sum_of_squares(grads), self._clip) if self._clip else 1.0
        momentum_direction.direction(out, grads, params, self.velocity, scale, self._decay, self._factor, rate)
        if sparse.look(out) >= 0:
            return True
        self.velocity.fill(0)
        return False
