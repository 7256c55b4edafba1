"""Sizes and durations as text."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psgd.kernels.errors import UsageError
from psgd.launch.bench.sizes import format_seconds, format_size, parse_counts, parse_size, parse_sizes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("4KiB", 4096),
        ("64 MiB", 64 * 2**20),
        ("1.5kib", 1536),
        ("1GiB", 2**30),
        ("4", 4),
        ("12 B", 12),
        ("1MB", 1_000_000),
    ],
)
def test_parse(text, nbytes):
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "KiB", "-4", "0", "2", "6", "4XiB", "nan", "inf", "1e3", "0.001KiB", "4 4", "٤"])
def test_refused(text):
    with pytest.raises(UsageError, match="--sizes"):
        parse_size(text)


def test_list():
    assert parse_sizes("64KiB, 4KiB") == [65536, 4096]
    with pytest.raises(UsageError):
        parse_sizes("4KiB,")


@given(st.integers(1, 2**40).map(lambda n: 4 * n))
def test_round_trip(nbytes):
    assert parse_size(format_size(nbytes)) == nbytes


@given(st.text(max_size=12))
def test_any_text_is_a_size_or_refused(text):
    with contextlib.suppress(UsageError):
        assert parse_size(text) >= 4


def test_seconds():
    assert [format_seconds(s) for s in (None, 2.5, 0.0123, 7.6e-6)] == ["-", "2.5 s", "12.3 ms", "7.6 µs"]


def test_counts():
    assert parse_counts("--batch", "64, 8,1") == [64, 8, 1]
    for text in ("", "1,", "0", "-1", "1.5", "x", "\u0664"):
        with pytest.raises(UsageError, match=r"^--batch: expected numbers of 1 or more, comma-separated, got"):
            parse_counts("--batch", text)
