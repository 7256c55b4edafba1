"""The format, as docs/compression.md says it: a decoder in plain Python, fixed bytes, and sizes against the entropy."""

import struct

import numpy as np
import pytest

from psgd.kernels import codecs

MASK = 2**64 - 1


def mix(z):
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return z ^ z >> 31


def checksum(payload):
    data = payload[8:]
    padded = data + bytes(8 - len(data) % 8)
    words = struct.unpack(f"<{len(padded) // 8}Q", padded)
    total = sum(mix((x + (i + 1) * 0x9E3779B97F4A7C15) & MASK) for i, x in enumerate(words)) + len(data)
    total += int.from_bytes(payload[:4], "little") << 32
    return mix(total & MASK) >> 32


class Bits:
    def __init__(self, data):
        self.value, self.at, self.size = int.from_bytes(data, "little"), 0, 8 * len(data)

    def take(self, width):
        self.at += width
        return self.value >> (self.at - width) & ((1 << width) - 1)


def gap(bits, code, log_block):
    quotient = 0
    while bits.take(1) == 0:
        quotient += 1
        if quotient == 32:
            return bits.take(log_block)
    k, odd = divmod(code, 2)
    if not odd:
        return quotient * 2**k + bits.take(k)
    digit = 0 if bits.take(1) == 0 else 1 + bits.take(1)
    return (3 * quotient + digit) * 2 ** (k - 1) + bits.take(k - 1)


def decode(data):
    """Header, and entries as (element, own bits), of a sparse payload; or the dense vector of onebit."""
    magic, kind, width, log_block, stated, n, count, nbytes, tau = struct.unpack_from("<BBBBIIIIf", data)
    assert (magic, kind >> 4, nbytes) == (0xC5, 1, len(data))
    assert stated == checksum(data)
    blocks = -(-n // 2**log_block)
    header = {"kind": kind & 15, "width": width, "log_block": log_block, "n": n, "count": count, "tau": tau}
    if kind & 15 == 2:
        means = struct.unpack_from(f"<{2 * blocks}f", data, 24)
        signs = Bits(data[24 + 8 * blocks :])
        return header, np.array([means[2 * (i >> log_block) + signs.take(1)] for i in range(n)])
    directory = struct.unpack_from(f"<{blocks}I", data, 24)
    at = 24 + 4 * blocks
    entries = []
    for block, word in enumerate(directory):
        code, size = word & 63, word >> 6
        bits = Bits(data[at : at + (size + 7) // 8])
        at += (size + 7) // 8
        place = block << log_block
        while bits.at < size:
            place += gap(bits, code, log_block)
            entries.append((place, bits.take(width)))
            place += 1
        assert bits.at == size and place <= min(n, (block + 1) << log_block)
        assert bits.take(bits.size - size) == 0
    assert at == len(data) and len(entries) == count
    return header, entries


def sparse(n, density, seed):
    """Values of +-1 at random places, zeros elsewhere."""
    rng = np.random.default_rng(seed)
    update = np.zeros(n, np.float32)
    places = rng.choice(n, round(n * density), replace=False)
    update[places] = rng.choice(np.float32([-1, 1]), places.size)
    return update


def encode(codec, update):
    payload = np.full(codec.max_nbytes() + 16, 0xA5, np.uint8)
    nbytes = codec.encode(update, payload[8:-8])
    assert (payload[:8] == 0xA5).all() and (payload[-8:] == 0xA5).all()
    assert nbytes <= codec.max_nbytes()
    return payload[8 : 8 + nbytes]


@pytest.mark.parametrize("n", [1, 2, 7, 64, 4095, 4096, 4097, 20011])
@pytest.mark.parametrize("share", [0.0, 1e-3, 0.02, 0.3, 0.7, 1.0])
def test_threshold_says_what_it_should_and_is_never_too_long(n, share):
    update = sparse(n, share, n)
    codec = codecs.create("threshold", n, density=1.0 if n % 2 else 0.01, tau=0.75, adapt=False)
    header, entries = decode(encode(codec, update).tobytes())
    assert header["tau"] == 0.75 and header["kind"] == 1
    assert entries == [(int(i), int(update[i] < 0)) for i in np.flatnonzero(update)]


def test_entries_in_clusters_and_huge_gaps():
    n = 3 * 2**20 + 77
    update = np.zeros(n, np.float32)
    for start in (5, 4096 - 3, 2**20 - 1, 2 * 2**20 + 900_000):
        update[start : start + 700] = 1
    update[-1] = -1
    codec = codecs.create("threshold", n, density=1e-3, tau=0.5, adapt=False)
    _, entries = decode(encode(codec, update).tobytes())
    assert entries == [(int(i), int(update[i] < 0)) for i in np.flatnonzero(update)]


@pytest.mark.parametrize(("values", "width"), [("float32", 32), ("bfloat16", 16)])
def test_topk_says_what_it_should(values, width):
    update = np.random.default_rng(1).standard_normal(9000).astype(np.float32)
    codec = codecs.create("topk", 9000, density=0.05, momentum=0.0, values=values)
    payload = encode(codec, update)
    header, entries = decode(payload.tobytes())
    assert (header["kind"], header["width"], header["tau"]) == (3, width, 0.0)
    out = np.zeros(9000, np.float32)
    codec.decode_add(payload, out)
    assert len(entries) == np.count_nonzero(out) == codec.sent > 300
    for place, own in entries:
        assert struct.unpack("<f", struct.pack("<I", own << (32 - width)))[0] == out[place]


@pytest.mark.parametrize("n", [1, 64, 100, 1000])
def test_onebit_says_what_it_should(n):
    update = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    codec = codecs.create("onebit", n, block=64)
    payload = encode(codec, update)
    header, dense = decode(payload.tobytes())
    assert (header["kind"], header["count"], header["log_block"]) == (2, n, 6)
    assert payload.size == 24 + 8 * -(-n // 64) + -(-n // 8)
    out = np.zeros(n, np.float32)
    codec.decode_add(payload, out)
    np.testing.assert_array_equal(out, dense)


VECTORS = {
    "threshold": (
        "c511010c19dc87c1c8100000260000004c0000000000a03fcd4c00000a0a0000818120596360604b40404040404040404040"
        "404040404040404040404040404000000000c05f0381030e0176"
    ),
    "onebit": (
        "c5120106fe1ade43c8000000c80000005100000000000000000028c000000000000000000000000000000000000000000000"
        "000000000000fcffffffffffffffffffffffffffffffffffffffffffffffff"
    ),
    "topk": (
        "c513100c8baa058ac810000030000000b1000000000000008c020100ca1c00000118e0000830a00c01ec08001c00ff0d00ff"
        "06407f0380bf01a0df00c06f00d07700e81300f80900fd04007f02a03f01e09f00f84f00002800011400010ac00005808002"
        "50400130a0001c5000102880081480040a600205408102a8400158a0002e50001828800c1480060a600305c08102e8400178"
        "a0003e10000000c05f0304010141d0811084832128800862a70802"
    ),
}


def vector(name):
    """Payloads that no rounding touches, with codes 2k and 2k + 1, an escape, a second block and both signs."""
    n = 4096 + 200
    update = np.zeros(n, np.float32)
    places = [0, 1, 500, *range(600, 640), 4095, 4096, 4100, 4200, 4201, n - 1]
    update[places] = np.arange(len(places)) * 0.25 - 2.75
    if name == "threshold":
        return encode(codecs.create(name, n, density=0.5, tau=1.25, adapt=False), update)
    if name == "onebit":
        return encode(codecs.create(name, 200, block=64), update[:200])
    return encode(codecs.create(name, n, density=1.0, momentum=0.5, values="bfloat16"), update)


@pytest.mark.parametrize("name", VECTORS)
def test_the_bytes_are_fixed(name):
    assert vector(name).tobytes().hex() == VECTORS[name]
    decode(bytes.fromhex(VECTORS[name]))


def entropy(density):
    """Bits for the place of each entry."""
    return (-density * np.log2(density) - (1 - density) * np.log2(1 - density)) / density


@pytest.mark.parametrize("density", [1e-2, 2e-3, 1e-3, 3e-4, 1e-4])
def test_places_cost_little_more_than_their_entropy(density):
    n = 2**24
    update = sparse(n, density, 7)
    codec = codecs.create("threshold", n, density=density, tau=0.5, adapt=False)
    bits = 8 * encode(codec, update).size / codec.sent - 1  # of all, header and directory too; the sign is extra
    assert codec.sent == np.count_nonzero(update)
    assert 1.0 <= bits / entropy(density) <= 1.02
    if density == 1e-3:
        assert bits <= 11.5
