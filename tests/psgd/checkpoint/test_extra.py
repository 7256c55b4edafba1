"""What a program saves beside comes back equal and of its type from a file, or is refused by name."""

import json

import numpy as np
import pytest
from mpi4py import MPI

import psgd
from psgd.checkpoint import extra, folder, shards
from psgd.checkpoint.state import State
from psgd.kernels.errors import CheckpointError

GOOD = {
    "none": None,
    "text": "\udce9 ä \0",
    "numbers": [True, 3, 0.1, -0.0, float("nan"), 10**30],
    "nested": {"a": {"": [[], {}]}},
    "array": np.arange(6, dtype=np.float16).reshape(2, 3)[:, ::-1],
    "": np.zeros((0, 3), bool),
    "extra.x": np.array(7, np.int8),
    "scalar": np.float32(0.1),
    "flag": np.bool_(True),
    "double": np.float64(0.1),
}
MASKED = np.ma.masked_array([1.0, 2.0], [False, True])


def there_and_back(tmp_path, value):
    tensors, facts = extra.split(value)
    shard = shards.write(tmp_path, "worker-0", tensors | {"params": np.ones(2)}, json.dumps({"loop": facts}))
    state = shards.read(tmp_path, shard)
    found = extra.joined(state.facts["loop"], state)
    assert list(state.tensors) == ["params"]
    return found


def test_what_comes_back(tmp_path):
    found = there_and_back(tmp_path, GOOD)
    assert found.keys() == GOOD.keys()
    for name, value in GOOD.items():
        got = found[name]
        assert type(got) is type(value), name
        if isinstance(value, (np.ndarray, np.generic)):
            assert got.dtype == value.dtype and got.shape == value.shape and got.tobytes() == value.tobytes(), name
        else:
            assert repr(got) == repr(value), name


def test_another_byte_order_comes_back_as_the_machines(tmp_path):
    found = there_and_back(tmp_path, {"a": np.arange(3, dtype=">i4"), "b": np.arange(3, dtype="<i4")})
    assert found["a"].dtype.isnative and found["a"].tolist() == found["b"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({1: 2}, "extra: expected strings as names, got 1"),
        ({"x": {1: "a", "1": "b"}}, r"extra\['x'\]: key 1 would be restored as a string"),
        ({"x": (1, 2)}, r"extra\['x'\]: tuple would not be restored unchanged; use a list"),
        ({"x": MASKED}, r"extra\['x'\]: MaskedArray would not .*convert it with numpy.array"),
        ({"x": np.zeros(2).view(np.recarray)}, r"extra\['x'\]: recarray would not"),
        ({"x": [np.float32(1)]}, r"extra\['x'\]\[0\]: float32 would not"),
        ({"x": 1j}, "complex"),
        ({"x": np.complex64(1)}, "expected numbers of dtype float64.*, got complex64"),
        ({"x": np.zeros(2, np.longdouble)}, f"got {np.dtype(np.longdouble)}"),
        ({"x": np.array([object()])}, "got object"),
        ({"x": np.array(["a"])}, "got <U1"),
        ({"x": np.datetime64("2020-01-01")}, "got datetime64"),
        ({"x": np.zeros(2, [("a", "f4")])}, "expected numbers of dtype"),
    ],
)
def test_what_does_not_come_back_is_refused(value, why):
    with pytest.raises(CheckpointError, match=why):
        extra.split(value)


def run(directory, steps, values, **options):
    """A run on one rank that saves `values[step]` beside at each step; what it began with."""
    with psgd.connect(MPI.COMM_SELF, np.ones(3), checkpoint_dir=directory, checkpoint_every=1, **options) as ps:
        began = dict(ps.extra)
        for step in range(ps.clock, steps):
            ps.extra["x"] = values[step]
            ps.step()
    return began


def test_a_header_that_no_reader_takes_is_refused_and_the_one_before_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "MOST_HEADER_BYTES", 20_000)
    with pytest.raises(CheckpointError, match=r"expected at most 20,000 bytes of JSON, got 40,\d+; save long texts"):
        run(tmp_path, 3, ["a", "b", "x" * 40_000])
    assert [path.name for path in folder.folders(tmp_path)] == ["step-000000002", "step-000000001"]
    assert run(tmp_path, 2, [], resume=True) == {"x": "b"}


def test_the_limit_is_the_librarys(tmp_path):
    longest = shards.MOST_HEADER_BYTES - 200
    text = json.dumps({"x": "y" * longest})
    shards.read(tmp_path, shards.write(tmp_path, "worker-0", {}, text[:-1] + "}"))
    with pytest.raises(CheckpointError, match="expected at most 100,000,000 bytes of JSON"):
        shards.write(tmp_path, "worker-0", {}, json.dumps({"x": "y" * (longest + 200)}))


def test_what_was_saved_and_cannot_be_read_is_passed_over_for_the_one_before(tmp_path, monkeypatch, capfd):
    """As a checkpoint of an earlier version, whose header is too long."""
    monkeypatch.setattr(shards, "MOST_HEADER_BYTES", 10**9)
    monkeypatch.setattr(shards, "_open", lambda path, take: (None, {}))
    run(tmp_path, 2, ["a", "x" * (100 << 20)])
    monkeypatch.undo()
    assert run(tmp_path, 1, [], resume=True) == {"x": "a"}
    text = capfd.readouterr().err
    assert "step-000000002 is skipped" in text and "too large" in text and "resuming from" in text


def test_a_file_that_cannot_be_read_back_is_not_published(tmp_path, monkeypatch):
    def unreadable(path, take):
        raise CheckpointError("unreadable")

    monkeypatch.setattr(shards, "_open", unreadable)
    with pytest.raises(CheckpointError, match="worker-0 cannot be written: unreadable"):
        run(tmp_path, 1, ["a"])
    assert folder.folders(tmp_path) == []


def test_whether_there_is_anything():
    assert not extra.is_in(State({"params": np.ones(2)}, {"loop": {"clock": 1, "extra": {}}})) and not extra.is_in(
        State()
    )
    assert extra.is_in(State({}, {"loop": {"extra": {"a": None}}})) and extra.is_in(State({"extra.a": np.ones(1)}))


@pytest.mark.parametrize("scalars", [7, None, {}, "a", [1], [["a"]]])
def test_names_of_scalars_that_cannot_be_are_refused(scalars):
    with pytest.raises(CheckpointError, match="scalars: expected a list of texts"):
        extra.joined({"extra": {}, "scalars": scalars}, State({"extra.a": np.array(1.0)}))
