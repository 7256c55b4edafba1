"""The estimate of a PyTorch module in pieces, beside the bytes that the same passes have on real ranks."""

import pytest

import psgd
from psgd import collectives
from psgd.config import TrainConfig

torch = pytest.importorskip("torch")
from psgd.launch.view.estimated_stages import of_module  # noqa: E402 -- where PyTorch is
from psgd.torch.fake_run import LiveBytes  # noqa: E402
from psgd.torch.pieces.torch_stage import TorchStage  # noqa: E402

nn = torch.nn


class Block(nn.Sequential):
    def __init__(self, width):
        super().__init__(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.BatchNorm1d(width), nn.Dropout(0.1)
        )


def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 40), *(Block(40) for _ in range(4)), nn.Linear(40, 10))


def measured(comm, config):
    """Bytes of parameters and of activations of a step of this rank."""
    axes, live = config.axes, LiveBytes()
    module, pipe = make(), comm
    if "tensor" in axes:
        ours = collectives.Communicator(comm)
        module, pipe = psgd.torch.cut_by_tensor(module, ours), comm.Split(comm.rank)
    plain = TorchStage.tensor

    def known(stage, array):
        found = plain(stage, array)
        live.know(found)
        return found

    options = {"cuts": (3,) if "pipe" in axes else (), "sample": (4, 4), "batch": config.batch_size}
    options |= {"microbatches": config.microbatches or 1, "recompute": config.recompute}
    with psgd.torch.pipeline(module, pipe, schedule=config.pipe_schedule or "1f1b", **options) as stages:
        x, y = torch.randn(config.batch_size, 4, 4), torch.randint(0, 10, (config.batch_size,))
        stages.gradient(config.batch_size, x, y)
        live.know(x, y, *stages.module.parameters(), *stages.module.buffers(), stages._grads)
        with pytest.MonkeyPatch.context() as patch, live:
            patch.setattr(TorchStage, "tensor", known)
            stages.gradient(config.batch_size, x, y)
        found = stages.params.nbytes, live.peak, sum(b.nbytes for b in stages.module.buffers())
    if "tensor" in axes:
        pipe.Free()
        ours.free()
    return found


@pytest.mark.ranks(2)
def test_bytes_of_each_place_are_those_of_real_passes(comm):
    for options in (
        {"mesh": "pipe=2", "microbatches": 4, "cut": "3"},
        {"mesh": "pipe=2", "microbatches": 4, "cut": "3", "recompute": "all"},
        {"mesh": "pipe=2", "microbatches": 3, "cut": "3", "pipe_schedule": "gpipe"},
        {"mesh": "tensor=2"},
    ):
        config = TrainConfig(model="net.py:make", strategy="allreduce", batch_size=96, **options)
        run = of_module(config, make, (4, 4), 0, 1)
        mine = run.ranks[comm.rank].rows
        rows = dict(mine)
        parameters, activations, buffers = measured(comm, config)
        assert rows["parameters"] == parameters and rows["buffers and frozen parameters"] == buffers, options
        assert rows["activations"] == pytest.approx(activations, rel=0.05), options
        assert run.parameters == pytest.approx(sum(p.numel() for p in make().parameters()), rel=0.01)
        assert run.verdict(10**12, "cpu") == [] and "pieces" in " ".join(run.verdict(1000, "cpu"))


def test_what_is_no_module_is_given_back_and_older_weights_count():
    config = TrainConfig(model="net.py:make", mesh="pipe=2", cut="3", pipe_schedule="pipedream", strategy="allreduce")
    assert of_module(config, lambda: 3, (4, 4), 0, 1) == 3
    first, last = (dict(each.rows) for each in of_module(config, make, (4, 4), 0, 1).ranks)
    older = "older weights of passes under way"
    assert first[older] == 2 * first["parameters"] and last[older] == last["parameters"]
