import math

import pytest

from psgd.config import TrainConfig
from psgd.kernels.errors import UsageError
from psgd.optim import schedules
from psgd.training.preparation import schedule


def test_constant():
    assert schedules.constant(0.3)(1e9) == 0.3


def test_step():
    rate = schedules.step(1.0, every=100, factor=0.5)
    assert [rate(s) for s in (0, 99, 100, 250)] == [1.0, 1.0, 0.5, 0.25]


def test_cosine():
    rate = schedules.cosine(2.0, total=100)
    assert rate(0) == 2.0
    assert rate(50) == pytest.approx(1.0)
    assert rate(25) == pytest.approx(1.0 + math.cos(math.pi / 4))
    assert rate(100) == rate(200) == pytest.approx(0.0, abs=1e-15)


def test_warmup():
    rate = schedules.warmup(schedules.constant(1.0), samples=100)
    assert [rate(s) for s in (0, 25, 100, 500)] == [0.0, 0.25, 1.0, 1.0]
    plain = schedules.constant(1.0)
    assert schedules.warmup(plain, 0) is plain


def test_linear_scaling():
    assert schedules.linear_scaling(0.1, 4) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedules.constant(-1), "constant: lr: expected a finite number above 0, got -1"),
        (lambda: schedules.constant("0.1"), "constant: lr: expected a finite number above 0, got '0.1'"),
        (lambda: schedules.constant(math.nan), "constant: lr: expected a finite number above 0, got nan"),
        (lambda: schedules.cosine(0.1, 0), "cosine: total: expected a finite number above 0, got 0"),
        (lambda: schedules.cosine(-0.1, 5), "cosine: lr: expected"),
        (lambda: schedules.cosine(0.1, 5, -1), "cosine: floor: expected a finite number, at least 0, got -1"),
        (lambda: schedules.step(0.1, 0), "step: every: expected a finite number above 0, got 0"),
        (lambda: schedules.step(0.1, 5, 0), "step: factor: expected"),
        (lambda: schedules.step(math.inf, 5), "step: lr: expected"),
        (lambda: schedules.warmup(schedules.constant(1), -1), "warmup: samples: expected"),
        (lambda: schedules.warmup(0.1, 5), "warmup: schedule: expected a function of the samples applied, got 0.1"),
        (lambda: schedules.linear_scaling(0.1, 0), "linear_scaling: workers: expected a whole number, at least 1"),
        (lambda: schedules.linear_scaling(0, 2), "linear_scaling: lr: expected"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_made(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_options_are_in_epochs_of_global_progress():
    config = TrainConfig(lr=0.1, schedule="step", step_epochs=2, step_factor=0.5, scale_lr=True, warmup_epochs=1)
    rate = schedule(config, samples=1000, workers=4)
    assert rate(500) == pytest.approx(0.2)
    assert rate(1000) == pytest.approx(0.4)
    assert rate(2000) == pytest.approx(0.2)
    cosine = schedule(TrainConfig(lr=0.1, schedule="cosine", epochs=4), samples=1000, workers=4)
    assert cosine(2000) == pytest.approx(0.05)
