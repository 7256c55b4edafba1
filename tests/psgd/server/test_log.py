import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psgd.kernels.errors import ContractError
from psgd.server.log import Contribution, LogEntry, decode, encode, entry_words

WORKERS = 5
members = st.builds(
    Contribution, st.integers(0, WORKERS - 1), st.integers(1, 2**50), st.floats(0, 1e6, allow_nan=False)
)
actions = st.builds(
    LogEntry,
    st.lists(members, max_size=WORKERS).map(tuple),
    st.lists(st.integers(0, WORKERS - 1), max_size=WORKERS).map(tuple),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2),
)


@given(actions)
def test_round_trip(action):
    words = np.zeros(entry_words(WORKERS), np.int64)
    used = encode(action, words)
    assert decode(words[:used], WORKERS) == action
    assert decode(words, WORKERS) == action  # received into a larger buffer


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=entry_words(WORKERS)))
def test_damage_is_refused_or_read(words):
    try:
        action = decode(np.array(words, np.int64), WORKERS)
    except ContractError:
        return
    assert all(0 <= worker < WORKERS for worker in (*action.release, *(m.worker for m in action.group)))


def test_truncated():
    words = np.zeros(entry_words(WORKERS), np.int64)
    used = encode(LogEntry((Contribution(1, 1), Contribution(2, 1)), (1, 2)), words)
    with pytest.raises(ContractError, match="truncated"):
        decode(words[: used - 1], WORKERS)
