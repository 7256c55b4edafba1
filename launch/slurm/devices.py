"""The GPUs that a job asks for, and `--device` of its training: neither works without the other."""

from psgd.kernels.errors import UsageError
from psgd.launch.slurm.templates import Template
from psgd.launch.slurm.training import value


def settle(kind: Template, words: list[str], given: int | None) -> int:
    """Returns how many GPUs a node has for the job; adds `--device cuda` to the words where only GPUs are given.

    Args:
        kind: for its GPUs, unless the words say `--device cpu`.
        words: options of train, with those of its file before them.
        given: GPUs per node; None: the kind's.

    Raises:
        UsageError: GPUs that nothing would use, or training on GPUs without any.
    """
    gpus = kind.gpus_per_node if given is None else given
    device = value(words, "--device")
    if flag := on_gpu(words):
        if not gpus:
            raise UsageError(f"{flag} cuda: expected --gpus-per-node N, with the number of GPUs of a node")
        return gpus
    if not gpus:
        return gpus
    if device is None:
        words += ["--device", "cuda"]
    elif given:
        raise UsageError(f"--gpus-per-node {given}: --device {device} uses no GPUs; expected --device cuda after --")
    else:
        gpus = 0
    return gpus


def on_gpu(words: list[str]) -> str | None:
    """Returns the flag that needs a GPU, None where there is none."""
    return next((flag for flag in ("--device", "--server-device") if value(words, flag) == "cuda"), None)
