import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psgd.kernels.errors import ContractError
from psgd.server.wire import FORMAT, HEADER_BYTES, Header, MessageKind

FIELDS = {
    "kind": MessageKind.PUSH,
    "worker": 2,
    "shard": 1,
    "push": 2**40,
    "version": 5,
    "samples": 64,
    "position": 123,
    "checkpoints": 3,
    "checkpoint_version": 2**40 - 1,
    "payload_bytes": -1,
    "checkpoint_request": 2,
    "stop": True,
    "leaving": False,
    "dropped": True,
    "loss": 0.25,
    "accuracy": -1.5,
    "waited_s": 1e9,
    "computed_s": 0.5,
}


def message(**fields):
    """A header's bytes as they arrive."""
    return bytearray(bytes(Header(**{**FIELDS, **fields})))


def test_round_trip():
    buffer = np.zeros(HEADER_BYTES, np.uint8)
    raw = message()
    buffer[: len(raw)] = raw
    header = Header.inside(buffer)
    header.check(2, 1)
    assert {name: getattr(header, name) for name in FIELDS} == FIELDS
    assert header.format == FORMAT and header.view == 0


def test_a_header_is_written_where_it_lies():
    buffer = np.zeros(HEADER_BYTES + 8, np.uint8)
    header = Header.inside(buffer)
    header.version, header.loss = 7, 0.5
    again = Header.from_buffer_copy(buffer.tobytes())
    assert (again.format, again.version, again.loss) == (FORMAT, 7, 0.5)


def test_it_fits_its_room_and_each_field_has_bytes_of_its_own():
    assert len(bytes(Header())) <= HEADER_BYTES
    ends = sorted((getattr(Header, name).offset, getattr(Header, name).size) for name, _ in Header._fields_)
    assert all(at + size <= following for (at, size), (following, _) in itertools.pairwise(ends))


@pytest.mark.parametrize(("worker", "shard"), [(1, 1), (2, 0)])
def test_another_sender_or_shard_is_refused(worker, shard):
    with pytest.raises(ContractError, match=f"expected .* worker {worker}, shard {shard}; got .* worker 2, shard 1"):
        Header.from_buffer(message()).check(worker, shard)


def test_another_format_is_refused():
    header = Header.from_buffer(message())
    header.format += 1
    with pytest.raises(ContractError, match="same psgd version"):
        header.check(2, 1)


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_damage_is_refused_or_read(data):
    header = Header.from_buffer(bytearray(data))
    try:
        header.check(0, 0)
    except ContractError:
        return
    assert header.format == FORMAT
