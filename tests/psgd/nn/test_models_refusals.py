"""What models refuse, in one clear line."""

import numpy as np
import pytest

from psgd.kernels.errors import DataError, UsageError
from psgd.nn.conv2d import Conv2D
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.models import build
from psgd.nn.reshape import ChannelsLast, Flatten

CLASSES, HIDDEN, N = 4, 9, 3


def make():
    """A bound mlp on 7 features, and N samples for it."""
    rng = np.random.default_rng(1)
    model = build("mlp", (7,), CLASSES, np.float64, hidden=HIDDEN)
    params = rng.standard_normal(model.layout.size)
    grads = np.full_like(params, np.nan)
    model.bind(params, grads)
    return model, params, grads, rng.standard_normal((N, 7)), np.array([3, 0, 1])


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("resnet", (1, 8, 8), "unknown model 'resnet': choose one of softmax, mlp, cnn"),
        ("cnn", (64,), "cnn needs images"),
        ("cnn", (8, 8), "cnn needs images"),
        ("cnn", (1, 3, 9), "at least 4 x 4"),
        ("mlp", (), "at least one value"),
        ("mlp", (3, 0), "at least one value"),
        ("resmlp", (64,), "resmlp needs images .* or samples"),
        ("resmlp", (1, 2, 3, 4), "use softmax or mlp"),
    ],
)
def test_build_refuses_in_one_line(name, shape, message):
    with pytest.raises(UsageError, match=message) as caught:
        build(name, shape, 10)
    assert "\n" not in str(caught.value)


def test_model_refuses_what_does_not_fit():
    with pytest.raises(UsageError, match="float32 or float64"):
        build("mlp", (7,), 10, np.float16)
    with pytest.raises(UsageError, match="layer with parameters"):
        Model([Flatten()], (7,))
    with pytest.raises(UsageError, match="one flat output"):
        Model([ChannelsLast(), Conv2D(2, 3)], (1, 7, 7))
    with pytest.raises(UsageError, match="xavier or he"):
        Model([Linear(3, init="zero")], (7,)).init(0)


def test_calls_refuse_wrong_arguments():
    model, params, grads, x, y = make()
    ctx = model.context(N)
    for bad in (params[1:], params.astype(np.float32), params.reshape(1, -1), [1.0]):
        with pytest.raises(UsageError):
            model.bind(bad, grads)
        with pytest.raises(UsageError):
            model.bind(params, bad)
    with pytest.raises(UsageError, match="1 to 3 samples"):
        model.gradient(ctx, np.concatenate([x, x]), np.concatenate([y, y]))
    with pytest.raises(UsageError, match="1 to 3 samples"):
        model.gradient(ctx, x[:0], y[:0])
    for bad in (x[:, :6], x.astype(np.float32), x.reshape(N, 7, 1)):
        with pytest.raises(UsageError):
            model.gradient(ctx, bad, y)
    for bad in (y[:2], y.astype(float), y.reshape(N, 1)):
        with pytest.raises(UsageError, match="integers"):
            model.gradient(ctx, x, bad)
    with pytest.raises(UsageError, match="another model"):
        model.gradient(build("mlp", (7,), CLASSES, np.float64).context(N), x, y)
    with pytest.raises(UsageError, match="1 or more"):
        model.context(0)
    model.gradient(ctx, x, y)
    dy = np.ones((N, CLASSES))
    with pytest.raises(UsageError, match="forward pass"):
        model.backward(ctx, dy)
    model.forward(ctx, x)
    model.evaluate(ctx, x, y)
    with pytest.raises(UsageError, match="forward pass"):
        model.backward(ctx, dy)
    for bad in (dy[:2], dy.astype(np.float32), dy.reshape(N, CLASSES, 1)):
        model.forward(ctx, x)
        with pytest.raises(UsageError, match="backward: dy: expected"):
            model.backward(ctx, bad)
    model.bind(params)
    with pytest.raises(UsageError, match="bound grads"):
        model.gradient(ctx, x, y)
    assert model.evaluate(ctx, x, y)[1] > 0


def test_wrong_label_leaves_the_gradient():
    model, _, grads, x, _ = make()
    grads[:] = 5
    with pytest.raises(DataError, match="label 4 in row 1"):
        model.gradient(model.context(N), x, np.array([0, 4, 0]))
    assert (grads == 5).all()
