import pytest
from hypothesis import given
from hypothesis import strategies as st

from psgd.kernels.errors import ContractError
from psgd.server.wire import FORMAT, HEADER_BYTES, Header, MessageKind, pack, unpack

HEADER = Header(FORMAT, 0, MessageKind.PUSH, 2, 1, 7, 2**40, 2**40 - 1, 5, 64, 123, 0, 0.25, -1.5)


def test_round_trip():
    buffer = bytearray(HEADER_BYTES)
    pack(buffer, HEADER)
    assert unpack(buffer, 2, 1) == HEADER


@pytest.mark.parametrize(("worker", "shard"), [(1, 1), (2, 0)])
def test_another_sender_or_shard_is_refused(worker, shard):
    buffer = bytearray(HEADER_BYTES)
    pack(buffer, HEADER)
    with pytest.raises(ContractError, match=f"expected .* worker {worker}, shard {shard}; got .* worker 2, shard 1"):
        unpack(buffer, worker, shard)


def test_another_format_is_refused():
    buffer = bytearray(HEADER_BYTES)
    pack(buffer, HEADER._replace(format=FORMAT + 1))
    with pytest.raises(ContractError, match="same psgd version"):
        unpack(buffer, 2, 1)


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_damage_is_refused_or_read(data):
    try:
        header = unpack(bytearray(data), 0, 0)
    except ContractError:
        return
    assert header.format == FORMAT
