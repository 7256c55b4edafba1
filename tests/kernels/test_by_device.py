"""Every function that chooses by device has a twin of the same name and arguments, and the choice is lazy."""

import ast
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import psgd.kernels
from psgd.kernels.by_device import by_device

ROOT = Path(psgd.kernels.__path__[0])


def functions(path):
    """Functions at a module's top level, by name."""
    return {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def arguments(node):
    return [arg.arg for arg in node.args.args], [ast.unparse(value) for value in node.args.defaults]


def decorated():
    """(module relative to `kernels`, function) wherever the decorator stands."""
    for path in sorted(ROOT.rglob("*.py")):
        for name, node in functions(path).items():
            if any(isinstance(d, ast.Name) and d.id == "by_device" for d in node.decorator_list):
                yield str(path.relative_to(ROOT)), name


@pytest.mark.parametrize(("module", "name"), list(decorated()))
def test_the_twin_has_the_same_arguments(module, name):
    twin = functions(ROOT / "device" / module)[name]
    assert arguments(twin) == arguments(functions(ROOT / module)[name])


def test_there_are_twins():
    assert len(list(decorated())) >= 18


def test_no_layer_chooses_by_hand():
    texts = [path.read_text() for folder in ("layers", "device/layers") for path in (ROOT / folder).glob("*.py")]
    assert len(texts) >= 12
    assert not any("isinstance" in text or "array_module" in text for text in texts)


def test_the_first_argument_chooses(monkeypatch):
    twin = types.ModuleType("psgd.kernels.device.nowhere")
    twin.side = lambda first, second: ("device", first, second)

    def side(first, second):
        return "host", len(first), second

    side.__module__ = "psgd.kernels.nowhere"
    either = by_device(side)
    assert either(np.zeros(3), 1) == ("host", 3, 1)  # and no twin is looked for
    monkeypatch.setitem(sys.modules, twin.__name__, twin)
    assert either("array", 2) == ("device", "array", 2)
