"""A stage of PyTorch's layers: passes with several microbatches alive, in one process."""

import numpy as np
import pytest

from psgd.kernels.errors import UsageError

torch = pytest.importorskip("torch")
from psgd.torch.pieces.sequential_stages import SequentialStages  # noqa: E402

nn = torch.nn


def make():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(4, 2))
    return module, SequentialStages(module, (3,), nn.functional.cross_entropy)


def test_microbatches_keep_their_graphs_and_gradients_add():
    module, whole = make()
    module.eval()
    first, last = whole.cut(0, 1), whole.cut(1, 4)
    x, y = torch.randn(6, 3), np.array([0, 1, 1, 0, 1, 0])
    nn.functional.cross_entropy(module(x), torch.from_numpy(y)).backward()
    wanted = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    contexts = [(first.context(3), last.context(3, wants_dx=True)) for _ in range(2)]
    for k, (front, back) in enumerate(contexts):
        z = first.forward(front, x.numpy()[3 * k : 3 * k + 3])
        kept = z.copy()
        assert last.forward(back, z).shape == (3, 2)
        assert np.array_equal(z, kept), "an in-place layer wrote to what the other stage keeps"
    total, ready = 0.0, []
    for k in (1, 0):
        dy, loss = last.loss(contexts[k][1], y[3 * k : 3 * k + 3], batch_size=6)
        dz = last.backward(contexts[k][1], dy, ready.append)
        assert first.backward(contexts[k][0], dz) is None
        total += loss
    assert total == pytest.approx(nn.functional.cross_entropy(module(x), torch.from_numpy(y)).item(), rel=1e-6)
    for p, grad in zip(module.parameters(), wanted, strict=True):
        assert torch.allclose(p.grad, grad, rtol=1e-5, atol=1e-7)
    assert ready == [range(last.layout.size)] * 2


def test_draws_are_by_key_and_evaluation_draws_nothing():
    module, whole = make()
    stage = whole.cut(0, 4)
    ctx, x = stage.context(4), np.ones((4, 3), np.float32)
    found = []
    for key in (1, 2, 1):
        ctx.draw(key, np.arange(4))
        found.append(stage.forward(ctx, x).copy())
    assert np.array_equal(found[0], found[2]) and not np.array_equal(found[0], found[1])
    ctx.draws.on = False
    assert np.array_equal(stage.forward(ctx, x), stage.forward(ctx, x))
    assert module.training and all(part.training for part in module)
    assert stage.evaluate(ctx, x, np.zeros(4, np.int64))[1] > 0
    assert stage.evaluate(ctx, x, np.zeros(4, np.int64)) == stage.evaluate(ctx, x, np.zeros(4, np.int64))


def test_what_a_pass_needs():
    _, whole = make()
    stage = whole.cut(0, 4)
    with pytest.raises(UsageError, match="needs a forward pass"):
        stage.backward(stage.context(2), np.ones((2, 2), np.float32))
    ctx = stage.context(2)
    with pytest.raises(UsageError, match="needs a forward pass"):
        stage.loss(ctx, np.zeros(2, np.int64), batch_size=2)
    stage.forward(ctx, np.ones((2, 3), np.float32))
    stage.loss_of = lambda output, labels: output
    with pytest.raises(UsageError, match="expected a tensor of one number"):
        stage.loss(ctx, np.zeros(2, np.int64), batch_size=2)
    stage.output_shape = (3,)
    with pytest.raises(UsageError, match="as of the trial"):
        stage.forward(ctx, np.ones((2, 3), np.float32))
