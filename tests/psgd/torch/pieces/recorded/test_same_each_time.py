"""What may be recorded: modules and losses of PyTorch alone."""

import pytest

torch = pytest.importorskip("torch")
from psgd.torch.pieces.recorded.same_each_time import draws, same_each_time, same_loss_each_time  # noqa: E402
from psgd.training.torch_module import cross_entropy  # noqa: E402

nn = torch.nn


class Own(nn.Module):
    def forward(self, x):
        return x


class Block(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, 3), nn.ReLU())


def hooked():
    module = nn.Sequential(nn.Linear(3, 3))
    module[0].register_forward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize(
    ("module", "may"),
    [
        (lambda: nn.Sequential(nn.Flatten(), Block(), nn.LayerNorm(3), nn.BatchNorm1d(3), nn.Dropout()), True),
        (lambda: nn.TransformerEncoderLayer(4, 2, 8), True),
        (Own, False),
        (lambda: nn.Sequential(nn.Linear(3, 3), Own()), False),
        (hooked, False),
        (lambda: nn.BatchNorm1d(3, momentum=None), False),
        (lambda: nn.Embedding(3, 3, max_norm=1.0), False),
        (lambda: nn.LSTM(3, 3), False),
    ],
)
def test_modules(module, may):
    assert same_each_time(module()) == may


def test_losses():
    for loss in (nn.functional.cross_entropy, nn.functional.mse_loss, nn.CrossEntropyLoss(), cross_entropy):
        assert same_loss_each_time(loss), loss
    for loss in (lambda output, labels: output.sum(), Own(), len):
        assert not same_loss_each_time(loss), loss


def test_what_may_draw():
    assert not draws(nn.Sequential(Block(), nn.Flatten(), nn.LayerNorm(3), nn.BatchNorm1d(3), nn.Embedding(3, 3)))
    for module in (nn.Dropout(), nn.RReLU(), nn.MultiheadAttention(4, 2), nn.Sequential(Block(), Own())):
        assert draws(module)
