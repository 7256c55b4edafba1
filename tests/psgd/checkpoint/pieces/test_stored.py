"""Vectors on the disk, in one file or in ranges over several."""

import json

import numpy as np
import pytest

from psgd.checkpoint import shards
from psgd.checkpoint.manifest import Manifest
from psgd.checkpoint.pieces.stored import Stored, without_vectors
from psgd.kernels.errors import CheckpointError

WHOLE = np.arange(11.0)
RANGES = {"worker-0": [range(3), range(7, 9)], "worker-1": [range(3, 5)], "worker-2": [range(5, 7), range(9, 11)]}


def written(folder, ranges=RANGES, of=11):
    files = []
    for name, own in ranges.items():
        cut = np.concatenate([WHOLE[each.start : each.stop] for each in own])
        tensors = {"params": cut, "state0": cut + 100, "noise": np.ones(2), "extra.x": np.zeros(3)}
        facts = {
            "ranges": [[each.start, each.stop] for each in own],
            "of": of,
            "cut": ["params", "state0"],
            "who": name,
        }
        files.append(shards.write(folder, name, tensors, json.dumps(facts), own, of))
    return Manifest(5, 50, shards=tuple(files))


@pytest.mark.parametrize("piece", ["", "pipe1"])
def test_any_ranges_are_read_from_whichever_files_have_them(tmp_path, piece):
    ranges = {piece + name: own for name, own in RANGES.items()}
    stored = Stored(tmp_path, written(tmp_path, ranges), piece, "worker-0", None)
    assert (stored.size, sorted(stored.kinds)) == (11, ["params", "state0"])
    assert stored.read("params", None).tolist() == WHOLE.tolist()
    rng = np.random.default_rng(0)
    for _ in range(50):
        ends = np.sort(rng.integers(0, 12, 6))
        wanted = [range(*ends[at : at + 2]) for at in (0, 2, 4)]
        expected = [100 + x for each in wanted for x in each]
        assert stored.read("state0", wanted).tolist() == expected


def test_the_first_stands_for_all_and_others_have_facts_and_what_is_no_vector(tmp_path):
    manifest = written(tmp_path)
    for name in RANGES:
        stored = Stored(tmp_path, manifest, "", name, 11)
        assert bool(stored.kinds) == (name == "worker-0")
        state = without_vectors(stored)
        assert state.facts == {"who": name}
        assert sorted(state.tensors) == ["extra.x", "noise"]
        assert sorted(stored.others(extra=False)) == ["noise"]


def test_files_of_other_sizes_or_dtypes_are_refused(tmp_path):
    manifest = written(tmp_path)
    ranges = list(RANGES["worker-2"])
    odd = {"params": np.zeros(3), "state0": np.zeros(4, np.float32), "noise": np.zeros((4, 2))}
    other = shards.write(tmp_path, "worker-2", odd, "{}", ranges, 11)
    stored = Stored(tmp_path, Manifest(5, 50, shards=(*manifest.shards[:2], other)), "", "worker-0", 11)
    with pytest.raises(CheckpointError, match=r"worker-2\.safetensors: .* out of bounds"):
        stored.read("params", None)
    with pytest.raises(CheckpointError, match="worker-2: expected a vector state0 of float64, got float32 of shape"):
        stored.read("state0", None)


def test_a_whole_vector_is_read_in_parts(tmp_path):
    tensors = {"params": WHOLE, "state0": WHOLE + 1, "other": np.zeros(3)}
    files = [shards.write(tmp_path, "worker-0", tensors, "{}"), shards.write(tmp_path, "worker-1", {}, "{}")]
    manifest = Manifest(5, 50, shards=tuple(files))
    stored = Stored(tmp_path, manifest, "", "worker-0", None)
    assert stored.read("state0", [range(2, 4), range(9, 10)]).tolist() == [3, 4, 10]
    assert sorted(stored.others(extra=True)) == ["other"]
    assert not Stored(tmp_path, manifest, "", "worker-1", None).kinds


def test_ranges_that_are_not_the_whole_are_refused(tmp_path):
    gap = {name: own for name, own in RANGES.items() if name != "worker-1"}
    for number, (ranges, of, size, text) in enumerate(
        [
            (gap, 11, None, "elements 5 to 7 of 11 after 3"),
            (RANGES, 12, None, "11 elements of 12"),
            (RANGES, 11, 12, "11 elements of 11, expected 12"),
            (RANGES | {"worker-3": [range(4, 6)]}, 11, None, "after 5"),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(CheckpointError, match=text):
            Stored(folder, written(folder, ranges, of), "", "worker-0", size)
