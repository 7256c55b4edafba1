import json
import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from psgd.checkpoint import shards
from psgd.checkpoint.shards import ShardFile
from psgd.kernels.errors import CheckpointError

RNG = np.random.default_rng(3)
TENSORS = {
    "params": RNG.standard_normal(1003).astype(np.float32),
    "wide": RNG.standard_normal((7, 3)),
    "half": RNG.standard_normal(5).astype(np.float16),
    "clock": np.array(2**62 + 1),
    "none": np.empty((0, 4), np.int32),
    "flags": np.array([True, False, True]),
    "bytes": np.arange(9, dtype=np.uint8),
    "large": RNG.integers(0, 2**60, 600_000),  # more than a chunk
}
FACTS = {"step": 12, "loss": 0.1 + 0.2, "names": ["ä", 'quo"te'], "big": 2**70}


def saved(folder, tensors=TENSORS, facts=FACTS, name="worker-3"):
    return shards.write(folder, name, tensors, json.dumps(facts))


def test_round_trip_bit_for_bit(tmp_path):
    shard = saved(tmp_path)
    assert shard == shards.written(tmp_path, "worker-3")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["worker-3.json", "worker-3.safetensors"]
    assert shard.size == (tmp_path / "worker-3.safetensors").stat().st_size
    shards.verify(tmp_path, shard)
    state = shards.read(tmp_path, shard)
    assert state.facts == FACTS
    assert state.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        got = state.tensors[name]
        assert (got.dtype, got.shape, got.tobytes()) == (tensor.dtype, tensor.shape, tensor.tobytes())
        got += got.dtype.type(1)  # memory of its own, writable


def test_the_library_reads_what_is_written_and_the_other_way_round(tmp_path):
    saved(tmp_path)
    for name, tensor in load_file(tmp_path / "worker-3.safetensors").items():
        assert np.array_equal(tensor, TENSORS[name])
    path = tmp_path / "server-0.safetensors"
    save_file(TENSORS, path, metadata={"psgd": json.dumps(FACTS)})
    state = shards.read(tmp_path, ShardFile("server-0", path.stat().st_size, "0" * 64))
    assert state.facts == FACTS and np.array_equal(state.tensors["large"], TENSORS["large"])


@pytest.mark.parametrize("tensors", [{}, {"params": np.empty(0, np.float32)}])
def test_nothing_is_something(tmp_path, tensors):
    state = shards.read(tmp_path, saved(tmp_path, tensors, {}))
    assert state.tensors.keys() == tensors.keys() and state.facts == {}


@pytest.mark.parametrize("dtype", [np.complex64, object, ">f4", "U3"])
def test_types_that_cannot_be_saved(tmp_path, dtype):
    with pytest.raises(CheckpointError, match="tensor x: expected one of"):
        saved(tmp_path, {"x": np.zeros(3, dtype)})
    assert list(tmp_path.iterdir()) == []


def test_every_damage_is_noticed(tmp_path):
    shard = saved(tmp_path)
    path = tmp_path / "worker-3.safetensors"
    whole = path.read_bytes()
    for at in (0, 9, 200, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(CheckpointError, match="damaged: its SHA-256"):
            shards.verify(tmp_path, shard)
    for text in (whole[:-1], whole + b"\0", b""):
        path.write_bytes(text)
        for look in (shards.verify, shards.read):
            with pytest.raises(CheckpointError, match="truncated or another file"):
                look(tmp_path, shard)
    path.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        shards.verify(tmp_path, shard)


def test_no_link_and_no_pipe_is_read(tmp_path):
    shard = saved(tmp_path, name="worker-0")
    os.mkfifo(tmp_path / "worker-3.safetensors")
    (tmp_path / "worker-4.safetensors").symlink_to(tmp_path / "worker-0.safetensors")
    (tmp_path / "worker-5.safetensors").mkdir()
    for name in ("worker-3", "worker-4", "worker-5"):
        for look in (shards.verify, shards.read):
            with pytest.raises(CheckpointError):
                look(tmp_path, ShardFile(name, shard.size, shard.sha256))


@pytest.mark.parametrize("name", ["../worker-0", "worker/0", "", "a.b", "WORKER-0", "worker-0\n", 3, None])
def test_names_that_could_lead_elsewhere(name):
    with pytest.raises(CheckpointError):
        ShardFile.from_json({"name": name, "size": 1, "sha256": "0" * 64})


def test_a_shard_of_another_version_or_name(tmp_path):
    assert shards.written(tmp_path, "worker-3") is None
    saved(tmp_path)
    path = tmp_path / "worker-3.json"
    fields = json.loads(path.read_text())
    for change in ({"format": "psgd shard 2"}, {"name": "worker-4"}, {"size": -1}, {"size": "9"}, {"sha256": "g" * 64}):
        path.write_text(json.dumps({**fields, **change}))
        with pytest.raises(CheckpointError):
            shards.written(tmp_path, "worker-3")


def test_an_outline_and_some_elements_are_read_without_the_rest(tmp_path):
    vector = np.arange(10, dtype=np.float32)
    shard = shards.write(tmp_path, "worker-0", {"params": vector, "flags": np.ones((2, 3), np.uint8)}, '{"step": 3}')
    outline = shards.outline(tmp_path, shard)
    assert outline.facts == {"step": 3}
    shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in outline.tensors.items()}
    assert shapes == {"params": ((10,), np.float32), "flags": ((2, 3), np.uint8)}
    np.testing.assert_array_equal(shards.elements(tmp_path, shard, "params", 4, 7), [4, 5, 6])
    with pytest.raises(CheckpointError, match="not a valid safetensors file"):
        shards.elements(tmp_path, shard, "other", 0, 1)
