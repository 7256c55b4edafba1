import math

import pytest

from psgd.collectives.mpi import env
from psgd.collectives.mpi.env import Variables
from psgd.kernels.errors import UsageError

NAMES = ("PSGD_SHARED", "PSGD_CHECK", "PSGD_PROGRESS", "PSGD_STALL", "PSGD_TIMEOUT")


@pytest.fixture
def variables(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return lambda **given: [monkeypatch.setenv(name, value) for name, value in given.items()]


def test_defaults_also_for_empty_ones(variables):
    wanted = Variables(shared=True, checks=False, progress=None, stall_s=30.0, timeout_s=math.inf)
    assert Variables.read() == wanted
    variables(**dict.fromkeys(NAMES, ""))
    assert Variables.read() == wanted


def test_each_is_read(variables):
    variables(PSGD_SHARED="0", PSGD_CHECK="1", PSGD_PROGRESS="0", PSGD_STALL="0.5", PSGD_TIMEOUT="1e3")
    assert Variables.read() == Variables(False, True, False, 0.5, 1000.0)
    variables(PSGD_SHARED="1", PSGD_PROGRESS="1")
    assert env.shared() and env.switch("PSGD_PROGRESS") is True


@pytest.mark.parametrize("value", ["yes", "2", " 1"])
@pytest.mark.parametrize("name", NAMES[:3])
def test_switches_are_0_or_1(variables, name, value):
    variables(**{name: value})
    with pytest.raises(UsageError, match=f"{name}: expected 0 or 1, got '{value}'"):
        Variables.read()


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan"])
@pytest.mark.parametrize("name", NAMES[3:])
def test_times_are_above_0(variables, name, value):
    variables(**{name: value})
    with pytest.raises(UsageError, match=f"{name}: expected a number of seconds above 0, got '{value}'"):
        Variables.read()
