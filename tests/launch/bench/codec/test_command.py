"""`psgd bench codec`: wrong options, a table and JSON, and a verification that can fail."""

import json
import math

import numpy as np
import pytest

from psgd.kernels.errors import ContractError

pytestmark = pytest.mark.one_mpi  # no rank is started

KEYS = {
    *("codec", "n", "density", "device", "encode_seconds", "decode_seconds", "bits_per_entry", "entropy_bits"),
    *("copy_seconds", "add_seconds", "gbs", "nbytes", "data", "dtype", "target_density", "repeats"),
}


WRONG_OPTIONS = [
    ("--codecs", "gzip"),
    ("--codecs", ""),
    ("--densities", "0"),
    ("--densities", "1e-3,2"),
    ("--densities", "nan"),
    ("--densities", "few"),
    ("--sizes", "4XiB"),
    ("--data", "real"),
    ("--repeats", "0"),
    ("surplus",),
]


def test_wrong_options(refused):
    refused(*[("bench", "codec", *words) for words in WRONG_OPTIONS], imports=["psgd.launch.bench"])


def test_json(psgd_command):
    arguments = ("--sizes", "1MiB", "--densities", "1e-2,1e-3", "--repeats", "3", "--json")
    result = psgd_command("bench", "codec", *arguments, timeout=100)
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    expected = [(1e-2, "threshold"), (1e-2, "onebit"), (1e-2, "topk"), (1e-3, "threshold"), (1e-3, "topk")]
    whats = [(kind, *one) for kind in ("random", "recorded") for one in expected]
    assert [(row["data"], row["target_density"], row["codec"]) for row in rows] == whats
    for row in rows:
        assert row.keys() == KEYS
        assert row["n"] == pytest.approx(2**18, rel=0.01)
        assert (row["device"], row["dtype"]) == ("cpu", "float32")
        assert min(row[key] for key in row if key.endswith("_seconds")) > 0
        assert row["gbs"] == pytest.approx(4 * row["n"] / row["encode_seconds"] / 1e9)
        d = row["density"]
        if row["codec"] == "onebit":
            assert (d, row["entropy_bits"]) == (1.0, 0.0) and 1.0 < row["bits_per_entry"] < 1.03
            continue
        assert row["entropy_bits"] == pytest.approx(-math.log2(d) - (1 - d) / d * math.log2(1 - d))
        if row["data"] == "random":
            assert d == pytest.approx(row["target_density"], rel=0.25)
            assert 1.0 < row["bits_per_entry"] - row["entropy_bits"] < 2.5  # its sign, and headers
            own = {"threshold": 1, "topk": 32}[row["codec"]]
            place = row["bits_per_entry"] - 1 + own
            assert row["nbytes"] == pytest.approx(place * d * row["n"] / 8, abs=1)


def test_table(psgd_command):
    arguments = ("--sizes", "64KiB", "--densities", "0.1", "--codecs", "onebit", "--data", "random", "--repeats", "1")
    result = psgd_command("bench", "codec", *arguments, timeout=60)
    assert result.returncode == 0, result.stderr
    head, row, foot = result.stdout.splitlines()
    assert head.split()[:3] == ["data", "codec", "size"]
    assert row.split()[:5] == ["random", "onebit", "64", "KiB", "1"]
    assert "verified" in foot


def test_verification_can_fail(monkeypatch):
    from psgd.kernels.codecs.threshold import Threshold
    from psgd.launch.bench.codec.data import random
    from psgd.launch.bench.codec.measure import measure

    honest = Threshold._encode

    def lossy(self, update, payload, other):
        result = honest(self, update, payload, other)
        self.residual[3] = 0.5
        return result

    monkeypatch.setattr(Threshold, "_encode", lossy)
    with pytest.raises(ContractError, match="element 3"):
        measure("threshold", 0.01, random(1000, 0.01, 0), 1, {})


def test_recorded_gradients_are_of_a_training():
    from psgd.launch.bench.codec.data import UPDATES, recorded

    updates = recorded(20_000)
    assert len(updates) == UPDATES
    assert all(update.dtype == np.float32 and 19_900 < update.size < 20_100 for update in updates)
    assert all(np.count_nonzero(update) > 5_000 for update in updates)
    assert not np.array_equal(updates[0], updates[1])
