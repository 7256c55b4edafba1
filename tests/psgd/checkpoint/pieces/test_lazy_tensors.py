"""Vectors of a state that are read when they are asked for."""

import numpy as np
import pytest

from psgd.checkpoint.pieces.lazy_tensors import LazyTensors
from psgd.kernels.errors import CheckpointError


class Vectors:
    def __init__(self):
        self.kinds = {"params": np.float64, "state0": np.float64}
        self.asked = []

    def read(self, name, ranges):
        self.asked.append((name, ranges))
        whole = np.arange(10.0)
        whole[9] = np.inf if name == "params" else 9
        return whole if ranges is None else np.concatenate([whole[each.start : each.stop] for each in ranges])


def test_nothing_is_read_before_it_is_asked_for():
    vectors = Vectors()
    made = LazyTensors({"noise": np.ones(3)}, vectors, "here")
    assert "state0" in made
    assert "noise" in made
    assert "state1" not in made
    assert list(made) == ["noise", "params", "state0"]
    assert len(made) == 3
    assert made.get("state1") is None
    assert not vectors.asked
    assert made["noise"].tolist() == [1, 1, 1]
    assert made.part("state0", [range(2), range(4, 5)]).tolist() == [0, 1, 4]
    assert made["state0"].tolist() == list(range(10))
    assert vectors.asked == [("state0", [range(2), range(4, 5)]), ("state0", None)]
    with pytest.raises(KeyError):
        made["state1"]


def test_it_is_a_dict_for_who_copies_or_changes_it():
    made = LazyTensors({"noise": np.ones(3)}, Vectors(), "here")
    assert made.pop("noise").tolist() == [1, 1, 1]
    made["params"] = np.zeros(2)
    assert {name: array.tolist() for name, array in dict(made).items()} == {
        "params": [0, 0],
        "state0": list(range(10)),
    }


def test_weights_must_be_numbers():
    made = LazyTensors({}, Vectors(), "here: worker-0")
    assert made.part("params", [range(9)]).tolist() == list(range(9))
    with pytest.raises(CheckpointError, match="here: worker-0: NaN or infinity in the parameters"):
        made["params"]
