"""GPUs' memory, asked of a driver that is made up; and where there is none."""

import ctypes
from types import SimpleNamespace

import pytest

from psgd.launch.memory import cards


def test_no_driver():
    assert cards.memory("libno-such-driver.so") == []


def driver(sizes, fails):
    def answer(name, value=lambda *_: None):
        def function(place=None, *rest):
            if place is not None and not isinstance(place, int):
                place._obj.value = value(*rest)
            return int(name == fails)

        return function

    def total(place, device):
        place._obj.value = sizes[device.value]
        return int(fails == "total")

    return SimpleNamespace(
        cuInit=answer("init"),
        cuDeviceGetCount=answer("count", lambda: len(sizes)),
        cuDeviceGet=answer("get", lambda index: index),
        cuDeviceTotalMem_v2=total,
    )


@pytest.mark.parametrize("fails", [None, "init", "count", "get", "total"])
def test_each_card_has_its_own(monkeypatch, fails):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver([80 << 30, 16 << 30], fails))
    assert cards.memory() == ([] if fails else [80 << 30, 16 << 30])
