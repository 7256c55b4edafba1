"""One layer run forward and backward, and its gradient by finite differences."""

import numpy as np

from psgd.nn.layer import Room

BATCH, N = 6, 3


class Run:
    """One layer with its buffers, more of them than samples, filled with NaN where they are uninitialized."""

    def __init__(self, layer, shape, xp=np, dtype=np.float64, wants_dx=True):
        rng = np.random.default_rng(len(shape))
        self.layer, self.xp = layer, xp
        self.state = layer.allocate(Room(xp, BATCH, np.dtype(dtype), shape, wants_dx))
        self.x = xp.asarray(rng.standard_normal((N, *shape)), dtype)
        self.dy = xp.asarray(rng.standard_normal((N, *layer.output_shape(shape))), dtype)
        self.params = tuple(xp.asarray(rng.standard_normal(spec.shape), dtype) for spec in layer.weights(shape))

    def forward(self):
        return self.layer.forward(self.state, self.x, self.params).copy()

    def backward(self):
        """Returns y, dx and the gradient of each parameter."""
        y = self.forward()
        grads = tuple(self.xp.full_like(a, np.nan) for a in self.params)
        dx = self.layer.backward(self.state, self.dy.copy(), self.params, grads)
        return y, dx, *grads


def finite_difference(run, array, eps=1e-6):
    """The gradient of sum(y * dy) by `array`, by central differences."""
    slope = np.empty_like(array)
    for at in np.ndindex(array.shape):
        kept = array[at]
        array[at] = kept + eps
        above = (run.forward() * run.dy).sum()
        array[at] = kept - eps
        slope[at] = (above - (run.forward() * run.dy).sum()) / (2 * eps)
        array[at] = kept
    return slope
