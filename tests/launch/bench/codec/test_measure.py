import math

import numpy as np
import pytest

from psgd.launch.bench.codec import data
from psgd.launch.bench.codec.measure import entropy, measure


def test_entropy():
    assert entropy(0.5) == 2.0
    assert entropy(0.25) == pytest.approx(-math.log2(0.25) - 3 * math.log2(0.75))
    assert entropy(1.0) == entropy(0.0) == 0.0


@pytest.mark.parametrize(("name", "bits"), [("onebit", 1.0), ("topk", None), ("threshold", None)])
def test_a_row(name, bits):
    updates = data.random(20_000, 0.01, 0)
    row = measure(name, 0.01, updates, 2, {"tau": data.TAU, "adapt": False} if name == "threshold" else {})
    assert (row["codec"], row["n"], row["repeats"]) == (name, 20_000, 2)
    assert row["bits_per_entry"] == pytest.approx(bits or row["entropy_bits"] + 1, rel=0.15)
    assert row["gbs"] == pytest.approx(80_000 / row["encode_seconds"] / 1e9)
    assert np.isfinite([row[f"{key}_seconds"] for key in ("encode", "decode", "copy", "add")]).all()
