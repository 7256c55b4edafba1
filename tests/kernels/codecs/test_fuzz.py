"""Damaged payloads: each is refused or decodes to something of the right length; nothing outside the arrays is touched.

PSGD_FUZZ says how many (20,000 by default).
"""

import ctypes
import mmap
import os

import numpy as np
import pytest

from psgd.kernels import codecs
from psgd.kernels.codecs import header
from psgd.kernels.errors import CodecError

COUNT = int(os.environ.get("PSGD_FUZZ", "20000"))
KINDS = {
    "threshold": {"density": 0.3},
    "onebit": {"block": 64},
    "topk": {"density": 0.2, "values": "bfloat16"},
}
SIZES = (1, 70, 4100, 8300)


def before_a_wall(nbytes):
    """Memory that ends where reading or writing one byte more ends the process."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    pages = -(-nbytes // mmap.PAGESIZE)
    whole = np.frombuffer(mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE), np.uint8)
    assert libc.mprotect(whole.ctypes.data + pages * mmap.PAGESIZE, mmap.PAGESIZE, 0) == 0
    return whole[pages * mmap.PAGESIZE - nbytes : pages * mmap.PAGESIZE]


def sealed(payload):
    """Makes a damaged payload's length and checksum right, so that all the rest is looked at."""
    if payload.size >= header.NBYTES:
        payload[16:20] = np.frombuffer(payload.size.to_bytes(4, "little"), np.uint8)
        stated = header.checksum(payload[8:], int.from_bytes(payload[:4].tobytes(), "little"))
        payload[4:8] = np.frombuffer(int(stated).to_bytes(4, "little"), np.uint8)


def damage(rng, payload, memory):
    """Writes a damaged copy to the end of `memory`, and returns it."""
    how = rng.integers(6)
    size = payload.size
    if how == 0:
        size = int(rng.integers(payload.size + 1))
    elif how == 1:
        size = payload.size + int(rng.integers(1, 20))
    copy = memory[memory.size - size :]
    copy[:] = rng.integers(0, 256, size, np.uint8)
    if how != 2:
        kept = min(size, payload.size)
        copy[:kept] = payload[:kept]
    else:
        copy[:4] = payload[:4]
        copy[8:12] = payload[8:12]
    for _ in range(rng.integers(4) if how < 3 else rng.integers(1, 9)):
        near = min(size, 48) if how == 3 else size  # in what says how the rest is read, or anywhere
        place = int(rng.integers(max(1, near)))
        if place < size:
            copy[place] = copy[place] ^ (1 << rng.integers(8)) if how != 4 else rng.integers(256)
    if rng.random() < 0.9:
        sealed(copy)
    return copy


@pytest.mark.parametrize("name", KINDS)
def test_damage_is_refused_or_harmless(name):
    rng = np.random.default_rng(int(os.environ.get("PSGD_FUZZ_SEED", "1")))
    refused = 0
    made = []
    for n in SIZES:
        codec = codecs.create(name, n, **KINDS[name])
        payload = np.empty(codec.max_nbytes(), np.uint8)
        for share in (0.01, 1.0):
            update = (rng.standard_normal(n) * (rng.random(n) < share)).astype(np.float32)
            made.append((codec, payload[: codec.encode(update, payload)].copy()))
    memory = before_a_wall(max(payload.size for _, payload in made) + 200)
    block = before_a_wall(4 * (max(SIZES) + 64)).view(np.float32)
    count = COUNT // len(KINDS)
    for i in range(count):
        codec, payload = made[i % len(made)]
        copy = damage(rng, payload, memory)
        block[:] = 3.5
        before = copy.tobytes()
        out = block[block.size - codec.n :]
        try:
            entries = codec.decode_add(copy, out)
        except CodecError:
            refused += 1
            assert (block == 3.5).all()  # nothing was added
        else:
            assert 0 <= entries <= codec.n and np.isfinite(out).all()
            assert (block[: block.size - codec.n] == 3.5).all()
        assert copy.tobytes() == before
    assert refused > count // 20  # and what is not, is what an encoder may have written


@pytest.mark.parametrize("name", KINDS)
def test_every_flipped_bit_and_every_length_is_noticed(name):
    codec = codecs.create(name, 300, **KINDS[name])
    payload = np.empty(codec.max_nbytes(), np.uint8)
    update = np.random.default_rng(0).standard_normal(300).astype(np.float32)
    payload = payload[: codec.encode(update, payload)]
    out = np.zeros(300, np.float32)
    for bit in range(8 * payload.size):
        payload[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(CodecError):
            codec.decode_add(payload, out)
        payload[bit >> 3] ^= 1 << (bit & 7)
    for size in range(payload.size):
        with pytest.raises(CodecError):
            codec.decode_add(payload[:size], out)
    with pytest.raises(CodecError, match="truncated or joined"):
        codec.decode_add(np.concatenate([payload, payload]), out)
    assert not out.any()
    codec.decode_add(payload, out)


def test_two_words_that_changed_places_are_noticed():
    data = np.random.default_rng(0).integers(0, 256, 800, np.uint8)
    words = data.view(np.uint64)
    seen = {header.checksum(data, 0), header.checksum(data, 1), header.checksum(data, 1 << 31)}
    for i in range(1, 100):
        words[[0, i]] = words[[i, 0]]
        seen.add(header.checksum(data, 0))
        words[[0, i]] = words[[i, 0]]
        words[[0, i]] ^= np.uint64(1 << 63)
        seen.add(header.checksum(data, 0))
        words[[0, i]] ^= np.uint64(1 << 63)
    assert len(seen) == 201
    assert len({header.checksum(np.zeros(n, np.uint8), 0) for n in range(100)}) == 100
