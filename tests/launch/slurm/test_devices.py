import pytest

from psgd.kernels.errors import UsageError
from psgd.launch.slurm.devices import on_gpu, settle
from psgd.launch.slurm.templates import KINDS

CPU, GPU = KINDS["cpu_parameter_server"], KINDS["gpu_allreduce"]


@pytest.mark.parametrize(
    ("kind", "words", "given", "gpus", "added"),
    [
        (CPU, [], None, 0, []),
        (CPU, [], 2, 2, ["--device", "cuda"]),
        (CPU, ["--server-device", "cuda"], 1, 1, []),
        (GPU, ["--device", "cuda"], None, 4, []),
        (GPU, ["--device=cpu"], None, 0, []),
    ],
)
def test_gpus_and_the_device_go_together(kind, words, given, gpus, added):
    changed = list(words)
    assert settle(kind, changed, given) == gpus
    assert changed == words + added


@pytest.mark.parametrize(
    ("words", "given", "message"),
    [
        (["--device", "cuda"], None, "--device cuda: expected --gpus-per-node N"),
        (["--server-device", "cuda"], 0, "--server-device cuda: expected --gpus-per-node N"),
        (["--device", "cpu"], 2, "--gpus-per-node 2: --device cpu uses no GPUs"),
    ],
)
def test_one_without_the_other_is_refused(words, given, message):
    with pytest.raises(UsageError, match=message):
        settle(CPU, words, given)


def test_the_flag_that_needs_a_gpu():
    assert on_gpu(["--lr", "1", "--server-device=cuda"]) == "--server-device"
    assert on_gpu(["--device", "cpu"]) is None
