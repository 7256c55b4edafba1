"""Running a user's file: once, with its neighbours in reach, and with errors that name its line."""

import hashlib
import random
import sys

import numpy as np
import pytest

from psgd.kernels.errors import UsageError
from psgd.user import script
from psgd.user.reference import find


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Writes a file and loads a function of it."""
    monkeypatch.setattr(script, "_RUN", {})
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(source, name="make", file="net.py"):
        (tmp_path / file).write_text(source)
        return script.load(find("--model", f"{tmp_path}/{file}:{name}"))

    return run


def test_a_file_is_run_once_for_all_of_its_functions_and_again_when_it_has_changed(run, tmp_path):
    source = "runs = []\nruns.append(1)\ndef make(): return runs\ndef other(): return runs\n"
    first, second = run(source), run(source, "other")
    assert first.call(0) is second.call(0)
    assert first.call(0) == [1]
    assert first.checksum == hashlib.sha256(source.encode()).hexdigest()
    changed = run(source + "\n")
    assert changed.call(0) is not first.call(0)
    assert changed.checksum != first.checksum
    assert list(tmp_path.glob("*.pyc")) + list(tmp_path.glob("__pycache__")) == []


def test_it_may_import_its_neighbours_and_hides_nobody_elses_modules(run, tmp_path):
    (tmp_path / "neighbour.py").write_text("value = 5")
    (tmp_path / "json.py").write_text("raise RuntimeError")
    made = run("import json\nfrom neighbour import value\ndef make(): return value, json.dumps(1)", file="random.py")
    assert made.call(0) == (5, "1")
    assert sys.modules["random"] is random


@pytest.mark.parametrize(
    ("source", "got"),
    [
        ("def make(): return 'none'", "none"),
        ("def make(width=3): return width", 3),
        ("def make(data): return data", "data"),
        ("def make(data, width=3): return data", "data"),
        ("def make(*more, **others): return more", ()),
        ("class make:\n    def __init__(self, data): self.data = data\n    def __eq__(self, o): return self.data == o",
         "data"),
    ],
)  # fmt: skip
def test_it_is_called_with_what_it_needs(run, source, got):
    assert run(source).call(0, "data") == got


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        ("def make(a, b): ...", ["data"], "expected a function with none or one, .* without a default, got 2"),
        ("def make(a): ...", [], "expected a function with none of its parameters without a default, got 1"),
        ("def make(*, a): ...", ["data"], "expected no keyword-only parameters without a default"),
        ("def make():\n    raise ValueError('a\\nb')", [], r"raised ValueError: a b \(net.py, line 2\)"),
        ("def make():\n    return int('x')", [], r"raised ValueError: invalid .* \(net.py, line 2\)"),
        ("import sys\ndef make():\n    sys.exit()", [], r"raised SystemExit \(net.py, line 3\)"),
    ],
)
def test_a_call_that_fails_is_one_line(run, source, arguments, message):
    with pytest.raises(UsageError, match=f"^--model .*net.py:make: {message}$"):
        run(source).call(0, *arguments)


@pytest.mark.parametrize(
    ("source", "name", "message"),
    [
        ("\n1 / 0\nmake = 1", "make", r"cannot be loaded: ZeroDivisionError: division by zero \(net.py, line 2\)"),
        ("import nonesuch\nmake = 1", "make", r"cannot be loaded: ModuleNotFoundError: .*\(net.py, line 1\)"),
        ("make = 5", "make", "expected a function, got int"),
        ("from os.path import *\ndef other(): ...", "make", "net.py has no function make; it defines "),
    ],
)
def test_a_file_that_cannot_be_loaded_is_one_line(run, source, name, message):
    with pytest.raises(UsageError, match=f"^--model .*net.py:{name}: {message}"):
        run(source, name)


def test_a_missing_pytorch_says_how_to_install_it(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=r"pip install 'psgd\[torch\]'$"):
        run("import torch\nmake = 1")


def test_the_generators_start_from_the_seed(run):
    made = run("import random\nimport numpy as np\ndef make(): return random.random(), np.random.rand()")
    state, kept = random.getstate(), np.random.get_state()
    try:
        assert made.call(7) == made.call(7)
        assert len({*made.call(7), *made.call(2**63 - 1)}) == 4
    finally:
        random.setstate(state)
        np.random.set_state(kept)
