"""The options that only one kind of batch script has, and their limits."""

from collections.abc import Sequence

from psgd.kernels.errors import UsageError
from psgd.launch.slurm.devices import on_gpu
from psgd.launch.slurm.training import names

_LONGEST_DELAY_S = 65535  # that Slurm takes


def check(kind: str, trial: Sequence[str], signal_delay_s: int | None, max_restarts: int | None) -> None:
    """Refuses the options of other kinds. Raises UsageError."""
    for flag, owner, given in (
        ("--trial", "array", trial or None),
        ("--signal-delay-s", "long_job", signal_delay_s),
        ("--max-restarts", "long_job", max_restarts),
    ):
        if given is not None and kind != owner:
            raise UsageError(f"{flag}: kind {kind} does not take it, expected kind {owner}")


def check_long_job(delay_s: int, restarts: int, time_min: int) -> None:
    """Refuses a signal that would come before the job's start. Raises UsageError."""
    if delay_s < 1 or restarts < 0:
        raise UsageError(f"--signal-delay-s, --max-restarts: expected at least 1 and 0, got {delay_s} and {restarts}")
    most = min(_LONGEST_DELAY_S, time_min * 60 - 1)
    if delay_s > most:
        longer = ", or a longer --time-min" if most < _LONGEST_DELAY_S else ""
        raise UsageError(
            f"--signal-delay-s {delay_s}: expected at most {most} with a time limit of {time_min} min{longer}"
        )


def check_trials(trials: Sequence[str], gpus: int) -> None:
    """Refuses trials that need GPUs where the array asks for none, or another number of ranks. Raises UsageError."""
    for text in trials:
        for option in ("--spares", "--grow"):
            if option in names(text.split()):
                raise UsageError(
                    f"--trial {text!r}: all jobs of an array have the same ranks; expected {option} after --"
                )
        if not gpus and (flag := on_gpu(text.split())):
            raise UsageError(f"--trial {text!r}: {flag} cuda needs GPUs; expected --gpus-per-node N")
