"""What each bundled batch script trains, and on how much."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Template:
    """A batch script.

    Attributes:
        what: it does, in lines of comment.
        workers: ranks that compute gradients.
        per_node: ranks of a node; None: all on one node.
        always: options of `psgd train` that make it this kind.
        example: the others, for the user to change.
        any_strategy: `what` holds with every strategy.
        gpus_per_node: 0 for CPUs only.
        cpus_per_task: cores of a rank.
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
        "Trains with a parameter server on CPUs: of the tasks the first --servers serve, the others work.",
        workers=8,
        always=(("--strategy", "sync"),),
        example=_DIGITS,
    ),
    "gpu_allreduce": Template(
        "Trains on the GPUs of several nodes with ring all-reduce: one task a GPU, no server.",
        workers=8,
        per_node=4,
        always=(("--strategy", "allreduce"), ("--device", "cuda")),
        example=_DIGITS,
        gpus_per_node=4,
        cpus_per_task=4,
    ),
    "easgd_host_master": Template(
        "Trains on the GPUs of one node with elastic averaging: each worker has parameters of its own on its GPU,\n"
        "the centre lies in the host's memory, and workers meet it one by one.",
        workers=4,
        always=(("--strategy", "easgd"), ("--easgd-order", "async"), ("--device", "cuda")),
        example=(*_DIGITS, "--period", "8"),
        per_node=4,
        gpus_per_node=4,
        cpus_per_task=4,
    ),
    "decentralized_slow_network": Template(
        "Trains over a slow network, 1 Gbit/s say: no server, one worker a node, each with updates for the others\n"
        "that are about a thousand times smaller than its parameters.",
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
        "Trains for longer than a job may last: saves and stops before its time limit, goes back into the queue by\n"
        "itself, and resumes where it was. It ends when training is done, after MAX_RESTARTS, or when a turn made\n"
        "no progress.",
        workers=8,
        always=(("--strategy", "sync"),),
        example=(*_DIGITS[:5], "1000", *_DIGITS[6:], "--checkpoint-every", "1000"),
        time_min=240,
        any_strategy=True,
    ),
}

TRIALS = tuple(f"--lr {lr} --batch-size {batch}" for lr in (0.05, 0.1, 0.2) for batch in (16, 32, 64))
"""What the bundled array tries: pairs of a flag and its value."""
