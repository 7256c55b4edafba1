import numpy as np
import pytest

from psgd.kernels.jit import kernel
from psgd.kernels.memory.cacheline import LINE_BYTES, drain, prefetch, put_line


@kernel
def copy(to: int, source: int, lines: int) -> None:
    for i in range(lines):
        put_line(to + i * LINE_BYTES, source + i * LINE_BYTES)
    drain()


@kernel
def fetch(address: int, lines: int) -> None:
    for i in range(lines):
        prefetch(address + i * LINE_BYTES)


@pytest.mark.parametrize("lines", [0, 1, 5, 1000])
@pytest.mark.parametrize("shift", [0, 1, 63])
def test_lines_put_past_the_cache_arrive_and_nothing_else_changes(lines, shift):
    rng = np.random.default_rng(lines)
    source = rng.integers(0, 256, lines * LINE_BYTES + 64, np.uint8)
    memory = np.full((lines + 3) * LINE_BYTES, 7, np.uint8)
    start = LINE_BYTES - memory.ctypes.data % LINE_BYTES
    copy(memory.ctypes.data + start, source.ctypes.data + shift, lines)
    end = start + lines * LINE_BYTES
    np.testing.assert_array_equal(memory[start:end], source[shift : shift + lines * LINE_BYTES])
    assert (memory[:start] == 7).all() and (memory[end:] == 7).all()


@pytest.mark.parametrize("address", ["own", "none", "beyond"])
def test_any_address_may_be_fetched_and_nothing_changes(address):
    values = np.arange(1000)
    fetch({"own": values.ctypes.data, "none": 0, "beyond": 1 << 46}[address], 100)
    np.testing.assert_array_equal(values, np.arange(1000))
