"""What holds for all codecs: nothing is lost, nothing else is touched, wrong arguments are refused."""

import subprocess
import sys

import numpy as np
import pytest
from harness import ROOT

from psgd.kernels import codecs
from psgd.kernels.errors import CodecError, ContractError, UsageError

ALL = pytest.mark.parametrize(
    ("name", "options"),
    [
        ("threshold", {}),
        ("threshold", {"clip": 2.0}),
        ("onebit", {}),
        ("topk", {}),
        ("topk", {"values": "bfloat16", "momentum": 0.0}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value)),
)
PLAIN = pytest.mark.parametrize(
    ("name", "options"), [("threshold", {}), ("onebit", {"block": 64}), ("topk", {"momentum": 0.0})]
)


def updates(n, count, seed=0, dtype=np.float32):
    """Different values, with clusters, signs and zeros of both signs."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        update = (rng.standard_normal(n) ** 3).astype(dtype)
        update[rng.random(n) < 0.1] = 0.0
        update[rng.random(n) < 0.1] = -0.0
        yield update


def buffer(codec):
    return np.full(codec.max_nbytes(), 0xA5, np.uint8)


@ALL
@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 1023, 4097, 100003])
def test_each_update_is_sent_or_left(name, options, n):
    codec = codecs.create(name, n, density=0.02, check=True, **options)
    payload = buffer(codec)
    for update in updates(n, 5):
        assert 24 <= codec.encode(update, payload) <= payload.size


@ALL
def test_float64_too(name, options):
    codec = codecs.create(name, 5000, np.float64, density=0.02, check=True, **options)
    payload, out = buffer(codec), np.zeros(5000)
    for update in updates(5000, 5, dtype=np.float64):
        codec.decode_add(payload[: codec.encode(update, payload)], out)
    assert codec.residual.dtype == np.float64 and np.count_nonzero(out) > 50


@PLAIN
def test_sums_are_exact_where_numbers_are_dyadic(name, options):
    n, steps = 4096, 40
    more = {"tau": 0.25, "adapt": False} if name == "threshold" else options
    codec = codecs.create(name, n, density=0.05, **more)
    payload, out = buffer(codec), np.zeros(n, np.float32)
    rng = np.random.default_rng(3)
    total = np.zeros(n)
    for _ in range(steps):
        update = (rng.integers(-64, 65, n) / 256).astype(np.float32)
        if name == "onebit":  # means of one value each are dyadic
            update = np.repeat(rng.integers(1, 65, n // 64) / 256, 64).astype(np.float32)
        codec.decode_add(payload[: codec.encode(update, payload)], out)
        total += update
    np.testing.assert_array_equal(out.astype(np.float64) + codec.residual, total)
    assert np.count_nonzero(out) > n // 20


@ALL
def test_nothing_else_is_touched(name, options):
    n = 4099
    codec = codecs.create(name, n, density=0.03, **options)
    memory = np.full(codec.max_nbytes() + 200, 0xA5, np.uint8)
    out = np.full(n + 20, 7, np.float32)
    for shift, update in enumerate(updates(n, 8)):  # payloads need no alignment
        before = update.tobytes()
        nbytes = codec.encode(update, memory[100 + shift : 100 + shift + codec.max_nbytes()])
        assert update.tobytes() == before
        assert (memory[: 100 + shift] == 0xA5).all() and (memory[100 + shift + codec.max_nbytes() :] == 0xA5).all()
        held = codec.residual.tobytes()
        codec.decode_add(memory[100 + shift : 100 + shift + nbytes], out[10:-10])
        assert codec.residual.tobytes() == held
        assert (out[:10] == 7).all() and (out[-10:] == 7).all()
        memory[:] = 0xA5


@ALL
@pytest.mark.parametrize("wrong", [np.nan, -np.nan, np.inf, -np.inf, 2.0**100, -3e38])
def test_an_update_that_is_not_finite_changes_nothing(name, options, wrong):
    n = 9000
    codec = codecs.create(name, n, density=0.01, **options)
    payload = buffer(codec)
    first, second = updates(n, 2)
    for place in (0, 4096, n - 1):
        bad = first.copy()
        bad[place] = wrong
        before = {key: array.tobytes() for key, array in codec.arrays().items()}
        assert codec.encode(bad, payload) == 0
        assert {key: array.tobytes() for key, array in codec.arrays().items()} == before
        assert codec.encode(second, payload) > 0


@ALL
def test_zeros_are_exactly_zero(name, options):
    n = 5000
    codec = codecs.create(name, n, density=0.01, **options)
    payload, out = buffer(codec), np.zeros(n, np.float32)
    for zero in (0.0, -0.0):
        nbytes = codec.encode(np.full(n, zero, np.float32), payload)
        codec.decode_add(payload[:nbytes], out)
        assert not out.any() and not codec.residual.any()
    codec.encode(next(updates(n, 1)), payload)  # and it goes on from there
    assert codec.sent > 0


@ALL
def test_a_saved_state_goes_on_with_the_same_bits(name, options):
    n = 6000
    one, other = (codecs.create(name, n, density=0.02, **options) for _ in range(2))
    a, b = buffer(one), buffer(other)
    for update in updates(n, 3):
        one.encode(update, a)
    saved = {key: array.copy() for key, array in one.arrays().items()}
    assert saved.keys() == other.arrays().keys()
    for key, array in other.arrays().items():
        array[:] = saved[key]
    for update in updates(n, 3, seed=1):
        nbytes = one.encode(update, a)
        assert other.encode(update, b) == nbytes and a[:nbytes].tobytes() == b[:nbytes].tobytes()


@ALL
def test_a_step_allocates_no_vector(name, options):
    import tracemalloc

    n = 200_000
    codec = codecs.create(name, n, **options)
    payload, out = buffer(codec), np.zeros(n, np.float32)
    update = next(updates(n, 1))
    codec.decode_add(payload[: codec.encode(update, payload)], out)
    tracemalloc.start()
    codec.decode_add(payload[: codec.encode(update, payload)], out)
    assert tracemalloc.get_traced_memory()[1] < 50_000
    tracemalloc.stop()


def test_a_codec_refuses_what_another_one_wrote():
    made = [codecs.create(name, 500) for name in codecs.CODECS]
    update, out = np.ones(500, np.float32), np.zeros(500, np.float32)
    for codec in made:
        payload = buffer(codec)
        payload = payload[: codec.encode(update, payload)]
        for other in made:
            if other is not codec:
                with pytest.raises(CodecError, match="another codec"):
                    other.decode_add(payload, out)
        with pytest.raises(CodecError, match="500 elements: expected 499"):
            codecs.create(codec.name, 499).decode_add(payload, out[:499])
    assert not out.any()


def test_any_density_and_block_is_decoded():
    out = np.zeros(5000, np.float32)
    update = next(updates(5000, 1))
    for one, other in (({"density": 0.5}, {"density": 1e-5}), ({"density": 1e-5}, {"density": 0.5})):
        for name in ("threshold", "topk"):
            codec = codecs.create(name, 5000, **one)
            payload = buffer(codec)
            nbytes = codec.encode(update, payload)
            assert codecs.create(name, 5000, **other).decode_add(payload[:nbytes], out) == codec.sent
    codec = codecs.create("onebit", 5000, block=64)
    payload = buffer(codec)
    codecs.create("onebit", 5000).decode_add(payload[: codec.encode(update, payload)], out)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("gzip", 5), "unknown codec 'gzip'"),
        (("topk", 0), "1 to 2147483647 elements, got 0"),
        (("onebit", 2**31), "elements"),
        (("onebit", 5, "int32"), "float32 or float64"),
        (("topk", 5, "float32", {"density": 0.0}), "density above 0"),
        (("threshold", 5, "float32", {"density": 1.5}), "density above 0"),
        (("threshold", 5, "float32", {"density": float("nan")}), "density above 0"),
        (("threshold", 5, "float32", {"values": "float32"}), "no option 'values': it has tau, adapt, clip"),
        (("threshold", 5, "float32", {"tau": 0.0}), "a tau"),
        (("threshold", 5, "float32", {"tau": float("nan")}), "a tau"),
        (("threshold", 5, "float32", {"clip": 0.5}), "a clip of 0"),
        (("threshold", 5, "float32", {"clip": float("nan")}), "a clip of 0"),
        (("onebit", 5, "float32", {"block": 100}), "power of two"),
        (("onebit", 5, "float32", {"block": 32}), "power of two"),
        (("topk", 5, "float32", {"momentum": 1.0}), "momentum"),
        (("topk", 5, "float32", {"values": "float16"}), "bfloat16"),
        (("topk", 5, "float32", {"max_density": 1e-4}), "at most 0.0001"),
    ],
)
def test_wrong_options(words, match):
    *words, options = (*words, {}) if not isinstance(words[-1], dict) else words
    with pytest.raises(UsageError, match=match):
        codecs.create(*words, **options)


def test_wrong_arrays():
    codec = codecs.create("threshold", 10)
    update, payload, out = np.ones(10, np.float32), buffer(codec), np.zeros(10, np.float32)
    wide = np.ones(20, np.float32)
    for wrong in (update[:9], wide, wide[::2], update.astype(np.float64), update.reshape(2, 5), [1.0] * 10):
        with pytest.raises(
            UsageError, match=r"codec threshold, update: expected a contiguous float32 array of 10, got"
        ):
            codec.encode(wrong, payload)
        with pytest.raises(UsageError, match=r"codec threshold, out: expected"):
            codec.decode_add(payload, wrong)
    for wrong in (payload[:-1], payload.view(np.int8), bytes(1000)):
        with pytest.raises(
            UsageError, match=r"codec threshold, payload: expected a contiguous uint8 array of at least"
        ):
            codec.encode(update, wrong)
    with pytest.raises(UsageError, match="payload"):
        codec.decode_add(bytes(30), out)


@PLAIN
def test_the_check_can_fail(name, options):
    codec = codecs.create(name, 1000, density=0.1, check=True, **options)
    payload = buffer(codec)
    honest = codec._encode

    def lossy(*words):
        result = honest(*words)
        codec.residual[17] += 1
        return result

    codec._encode = lossy
    with pytest.raises(ContractError, match="element 17 is"):
        codec.encode(next(updates(1000, 1)), payload)


def test_importing_loads_no_numba(tmp_path):
    root = str(ROOT)
    probe = f"import sys; sys.path.insert(0, {root!r}); import psgd.kernels.codecs as c; print('numba' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False", done.stderr
