"""Arrays from streams that may lie about their size."""

import io

import numpy as np
import pytest

from psgd import DataError
from psgd.data.stream import CHUNK, DEFLATE_RATIO, check_size, describe, fill

BYTES = np.dtype(np.uint8)


def test_describe():
    assert describe((60000, 28, 28), BYTES) == "60000 x 28 x 28 uint8"


@pytest.mark.parametrize("count", [1, 7, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3])
def test_fill_across_chunks(count):
    values = (np.arange(count) % 251).astype(np.uint8)
    got = fill(io.BytesIO(values.tobytes()), (count,), BYTES, count, "f")
    np.testing.assert_array_equal(got, values)


class Dripping(io.BytesIO):
    def read(self, size=-1):
        return super().read(min(size, 3))


def test_fill_from_short_reads():
    values = np.arange(10, dtype="<f8").reshape(5, 2)
    got = fill(Dripping(values.tobytes()), (5, 2), values.dtype, 80, "f")
    np.testing.assert_array_equal(got, values)


@pytest.mark.parametrize(
    ("present", "message"),
    [(11, "^f: truncated: .*2 x 6 uint8 = 12 bytes of data, got 11"), (13, "^f: trailing")],
)
def test_sizes_that_differ(present, message):
    with pytest.raises(DataError, match=message):
        check_size("f", (2, 6), BYTES, present)
    with pytest.raises(DataError, match=message):
        fill(io.BytesIO(bytes(present)), (2, 6), BYTES, 100, "f")


def test_nothing_promised():
    with pytest.raises(DataError, match=r"^f: empty"):
        fill(io.BytesIO(b""), (0, 5), BYTES, 100, "f")


def test_a_promise_beyond_what_compression_can_give_is_not_allocated():
    with pytest.raises(DataError, match="cannot come from 100 compressed bytes"):
        fill(io.BytesIO(b""), (100 * DEFLATE_RATIO + 1,), BYTES, 100, "f")
    with pytest.raises(DataError, match="cannot come from"):
        fill(io.BytesIO(b""), (2**32 - 1,) * 4, BYTES, 100, "f")
