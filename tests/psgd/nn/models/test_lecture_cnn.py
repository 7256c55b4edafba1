import numpy as np
import pytest

from psgd.kernels.errors import UsageError
from psgd.nn.layers.dropout import Dropout
from psgd.nn.model import Model
from psgd.nn.models import build
from psgd.nn.models.lecture_cnn import layers


def test_its_parameters_are_the_lectures():
    model = build("lecture-cnn", (1, 28, 28), 10)
    shapes = [parameter.shape for parameter in model.layout.parameters]
    assert shapes == [(5, 5, 1, 32), (32,), (5, 5, 32, 64), (64,), (3136, 1024), (1024,), (1024, 10), (10,)]


def test_pytorch():
    torch = pytest.importorskip("torch")
    nn = torch.nn
    model = build("lecture-cnn", (2, 9, 6), 3, np.float64)
    params = model.init(1)
    grads = np.empty_like(params)
    model.bind(params, grads)
    twin = nn.Sequential(
        *(nn.Conv2d(2, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 3)),
    ).double()
    named = zip(twin.parameters(), model.layout.for_torch(params).values(), strict=True)
    with torch.no_grad():
        for parameter, ours in named:
            parameter.copy_(torch.tensor(ours))
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(4, 2, 9, 6)), np.array([0, 1, 2, 0])
    loss = nn.functional.cross_entropy(twin(torch.tensor(x)), torch.tensor(y))
    loss.backward()
    assert model.gradient(model.context(4), x, y) == pytest.approx(loss.item(), rel=1e-12)
    for parameter, ours in zip(twin.parameters(), model.layout.for_torch(grads).values(), strict=True):
        np.testing.assert_allclose(ours, parameter.grad.numpy(), rtol=1e-9, atol=1e-12)


def test_dropout_is_before_the_last_layer():
    made = layers((1, 8, 8), 4, dropout=0.4)
    assert layers((1, 8, 8), 4) == [layer for layer in made if layer != Dropout(0.4)]
    assert made[-2] == Dropout(0.4)
    assert Model(made, (1, 8, 8)).layout == build("lecture-cnn", (1, 8, 8), 4).layout


@pytest.mark.parametrize("shape", [(7,), (5, 5), (1, 3, 8), (1, 8, 3)])
def test_what_is_no_image_or_too_small_is_refused(shape):
    with pytest.raises(UsageError, match="model lecture-cnn needs images"):
        build("lecture-cnn", shape, 3)
