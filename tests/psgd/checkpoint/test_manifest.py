import json
from dataclasses import replace

import pytest

from psgd.checkpoint import manifest
from psgd.checkpoint.manifest import FILE, Manifest
from psgd.checkpoint.shards import ShardFile
from psgd.kernels.errors import CheckpointError
from psgd.nn.layout import Layout

LAYOUT = Layout([("linear1.weight", (7, 3)), ("linear1.bias", (3,))])
SHARDS = [ShardFile(name, 9, 64 * "a") for name in ("worker-10", "server-1", "worker-2", "server-0", "extra")]
WHOLE = Manifest(
    1200,
    2**40,
    1201,
    0.975,
    {"strategy": "ssp", "lr": 0.1},
    {"Allreduce": "ring"},
    layout=LAYOUT,
    facts={"losses": [1.5]},
)


def test_round_trip(tmp_path):
    manifest.write(tmp_path, WHOLE, SHARDS)
    got = manifest.read(tmp_path)
    assert got.shards == tuple(SHARDS)
    assert manifest.as_json(got) == json.loads((tmp_path / FILE).read_text())
    for name in ("step", "samples", "version", "accuracy", "run", "algorithms", "software", "layout", "facts"):
        assert getattr(got, name) == getattr(WHOLE, name)
    assert got.software["numpy"]
    assert got.names() == ["extra", "server-0", "server-1", "worker-2", "worker-10"]
    assert got.names("worker") == ["worker-2", "worker-10"]
    assert got.shard("server-1") is got.shards[1]
    with pytest.raises(CheckpointError, match="no shard worker-3"):
        got.shard("worker-3")


def test_layouts_with_parts_and_ties_come_back(tmp_path):
    layout = Layout([("w", (4, 3))], parts={"w": ((8, 3), (4, 0))}, tied={"v": "w"})
    manifest.write(tmp_path, replace(WHOLE, layout=layout), SHARDS)
    assert manifest.read(tmp_path).layout == layout


CHANGES = [
    {"format": "psgd checkpoint 2"},
    {"format": None},
    {"step": -1},
    {"step": 1.5},
    {"step": True},
    {"step": 2**63},
    {"samples": "9"},
    {"version": None},
    {"accuracy": "high"},
    {"accuracy": float("nan")},
    {"accuracy": 10**400},
    {"run": []},
    {"algorithms": 3},
    {"software": None},
    {"facts": "x"},
    {"layout": {}},
    {"layout": {"align": 16, "size": 1, "parameters": []}},
    {"layout": 3},
    {"shards": []},
    {"shards": {}},
    {"shards": [3]},
    {"shards": ["worker-0"]},
    {"shards": [{"name": "worker-0"}]},
    {"shards": 2 * [{"name": "worker-0", "size": 1, "sha256": 64 * "0"}]},
    {"shards": [{"name": "../../etc/passwd", "size": 1, "sha256": 64 * "0"}]},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_what_is_no_manifest(tmp_path, change):
    manifest.write(tmp_path, WHOLE, SHARDS)
    fields = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps({**fields, **change}))
    with pytest.raises(CheckpointError, match="no manifest of this version"):
        manifest.read(tmp_path)


def test_damage(tmp_path):
    manifest.write(tmp_path, WHOLE, SHARDS)
    path = tmp_path / FILE
    text = path.read_bytes()
    fields = json.loads(text)
    for name in fields:
        path.write_text(json.dumps({key: value for key, value in fields.items() if key != name}))
        with pytest.raises(CheckpointError, match=name):
            manifest.read(tmp_path)
    for damaged in (text[:-5], b"", b"\xff\xfe", b"[1]", b"[" * 100_000, b'{"step": ' + 5000 * b"9" + b"}"):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="JSON"):
            manifest.read(tmp_path)
    path.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        manifest.read(tmp_path)
