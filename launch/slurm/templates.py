"""What each bundled batch script trains, and with what resources."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Template:
    """A batch script.

    Attributes:
        what: the script does, as lines of a comment.
        workers: ranks that compute gradients.
        per_node: ranks per node; None: all on one node.
        always: options of `psgd train` that make it this kind.
        example: the others, for the user to change.
        any_strategy: whether `what` is true of every strategy.
        gpus_per_node: 0 for CPUs only.
        cpus_per_task: cores per rank.
        time_min: the time limit, in minutes.
    """

    what: str
    workers: int
    always: tuple[tuple[str, str], ...]
    example: tuple[str, ...]
    per_node: int | None = None
    gpus_per_node: int = 0
    cpus_per_task: int = 1
    time_min: int = 30
    any_strategy: bool = False


_DIGITS = ("--dataset", "digits", "--model", "mlp", "--epochs", "50", "--batch-size", "16", "--lr", "0.1")

KINDS = {
    "cpu_parameter_server": Template(
        "Trains with a parameter server on CPUs: the first --servers tasks are servers, the others are workers.",
        workers=8,
        always=(("--strategy", "sync"),),
        example=_DIGITS,
    ),
    "gpu_allreduce": Template(
        "Trains on the GPUs of several nodes with ring all-reduce: one task per GPU, no servers.",
        workers=8,
        per_node=4,
        always=(("--strategy", "allreduce"), ("--device", "cuda")),
        example=_DIGITS,
        gpus_per_node=4,
        cpus_per_task=4,
    ),
    "easgd_host_master": Template(
        "Trains on the GPUs of one node with elastic averaging: each worker keeps its own parameters on its GPU,\n"
        "the centre is in host memory, and workers exchange with it one at a time.",
        workers=4,
        always=(("--strategy", "easgd"), ("--easgd-order", "async"), ("--device", "cuda")),
        example=(*_DIGITS, "--period", "8"),
        per_node=4,
        gpus_per_node=4,
        cpus_per_task=4,
    ),
    "decentralized_slow_network": Template(
        "Trains over a slow network, such as 1 Gbit/s: no servers, one worker per node. The updates that workers\n"
        "send each other are about a thousand times smaller than the parameters.",
        workers=4,
        per_node=1,
        always=(("--strategy", "decentralized"),),
        example=_DIGITS,
        cpus_per_task=4,
    ),
    "array": Template(
        "Tries several settings: one job of the array for each line of TRIALS.",
        workers=3,
        always=(("--strategy", "sync"),),
        example=("--dataset", "digits", "--model", "mlp", "--epochs", "50"),
        any_strategy=True,
    ),
    "long_job": Template(
        "Trains for longer than the time limit allows: saves and stops before the limit, requeues itself, and resumes\n"
        "where it stopped. It ends when training is done, after MAX_RESTARTS requeues, or when a run made no progress.",
        workers=8,
        always=(("--strategy", "sync"),),
        example=(*_DIGITS[:5], "1000", *_DIGITS[6:], "--checkpoint-every", "1000"),
        time_min=240,
        any_strategy=True,
    ),
}

TRIALS = tuple(f"--lr {lr} --batch-size {batch}" for lr in (0.05, 0.1, 0.2) for batch in (16, 32, 64))
"""What the bundled array tries: pairs of a flag and its value."""
