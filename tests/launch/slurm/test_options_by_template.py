import pytest

from psgd.kernels.errors import UsageError
from psgd.launch.slurm import options_by_template as options


@pytest.mark.parametrize(
    ("kind", "trial", "delay", "restarts", "refused"),
    [
        ("array", ["--lr 1"], None, None, None),
        ("long_job", (), 60, 0, None),
        ("long_job", ["--lr 1"], None, None, "--trial: kind long_job does not take it, expected kind array"),
        ("array", (), 60, None, "--signal-delay-s: kind array"),
        ("gpu_allreduce", (), None, 3, "--max-restarts: kind gpu_allreduce does not take it, expected kind long_job"),
    ],
)
def test_options_of_another_kind_are_refused(kind, trial, delay, restarts, refused):
    if refused is None:
        options.check(kind, trial, delay, restarts)
    else:
        with pytest.raises(UsageError, match=refused):
            options.check(kind, trial, delay, restarts)


@pytest.mark.parametrize(("delay", "minutes", "fine"), [(59, 1, True), (60, 1, False), (65535, 9999, True)])
def test_the_signal_comes_within_the_job(delay, minutes, fine):
    if fine:
        options.check_long_job(delay, 1, minutes)
    else:
        with pytest.raises(UsageError, match="expected at most 59 with a time limit of 1 min, or a longer --time-min"):
            options.check_long_job(delay, 1, minutes)


@pytest.mark.parametrize(("delay", "restarts"), [(0, 1), (1, -1)])
def test_small_numbers(delay, restarts):
    with pytest.raises(UsageError, match="expected at least 1 and 0"):
        options.check_long_job(delay, restarts, 10)


def test_trials_on_gpus_need_some():
    options.check_trials(["--device cuda"], 1)
    with pytest.raises(UsageError, match="--device cuda needs GPUs"):
        options.check_trials(["--lr 1", "--device cuda"], 0)
