"""The check finds a codec that loses something, and leaves a sound one alone."""

import numpy as np
import pytest

from psgd.kernels import codecs
from psgd.kernels.errors import ContractError

N = 1000


def made(name, check=True):
    codec = codecs.create(name, N, "float32", density=0.05, check=check)
    return codec, np.empty(codec.max_nbytes(), np.uint8)


def update(seed):
    return np.random.default_rng(seed).normal(size=N).astype(np.float32)


@pytest.mark.parametrize("name", codecs.CODECS)
def test_a_sound_codec_says_the_same_with_and_without(name):
    one, payload = made(name)
    two, other = made(name, check=False)
    for seed in range(4):
        assert (
            payload[: one.encode(update(seed), payload)].tobytes() == other[: two.encode(update(seed), other)].tobytes()
        )
    wrong = update(9)
    wrong[3] = np.nan
    assert one.encode(wrong, payload) == 0


@pytest.mark.parametrize("name", codecs.CODECS)
def test_a_residual_that_lost_a_bit_is_found(name):
    codec, payload = made(name)
    plain = codec._encode

    def lossy(*arguments):
        result = plain(*arguments)
        codec.residual[17] += np.float32(1e-3)
        return result

    codec._encode = lossy
    with pytest.raises(ContractError, match=f"codec {name} of {N} elements: what was sent .* element 17 is"):
        codec.encode(update(1), payload)


@pytest.mark.parametrize("name", codecs.CODECS)
def test_entries_that_do_not_arrive_are_found(name):
    codec, payload = made(name)
    plain = codec.decode_add
    codec.decode_add = lambda *arguments: plain(*arguments) - 1
    with pytest.raises(ContractError, match=r"\d+ entries were sent, \d+ arrived"):
        codec.encode(update(1), payload)
