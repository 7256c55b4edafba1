"""PyTorch's side, on one process without a GPU."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from psgd.launch.bench.gpt2 import fsdp  # noqa: E402
from psgd.launch.bench.gpt2.trial import GPT2Trial  # noqa: E402


class Alone:
    rank, size = 0, 1

    def Barrier(self):
        pass

    def allreduce(self, value):
        return value


@pytest.fixture
def group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_it_trains(group):
    trial = GPT2Trial(2, 32, 4, 16, 300, 8, 4, 3, 6, 1, "cpu")

    def tokens(step, number):
        x = np.random.default_rng(number).integers(0, 256, (4, 16))
        return x.astype(np.uint8), np.roll(x, -1, 1)

    losses, seconds, nbytes = fsdp.steps(Alone(), trial, tokens, 1e-2, torch.device("cpu"))
    assert len(losses) == len(seconds) == 6 and nbytes == 0
    assert losses[-1] < losses[0] - 0.5 and losses[0] == pytest.approx(np.log(300), rel=0.1)
