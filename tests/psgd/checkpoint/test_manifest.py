import hashlib
import json
import re
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
)


def test_round_trip(tmp_path):
    manifest.write(tmp_path, WHOLE, SHARDS)
    got = manifest.read(tmp_path)
    assert got.shards == tuple(SHARDS)
    found = json.loads((tmp_path / FILE).read_text())
    assert found.pop("sha256") and manifest.as_json(got) == found and got.sealed
    for name in ("step", "samples", "version", "accuracy", "run", "algorithms", "software", "layout"):
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
    {"format": "psgd checkpoint 3"},
    {"format": []},
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


def sealed(fields):
    """A manifest of these fields, whose checksum is right."""
    body = json.dumps(fields, indent=1)[:-2]
    return f'{body},\n "sha256": "{hashlib.sha256(body.encode()).hexdigest()}"\n}}\n'.encode()


def test_every_byte_is_covered(tmp_path):
    """Three changes of each byte, a byte less and a byte more at each place."""
    manifest.write(tmp_path, WHOLE, SHARDS)
    path = tmp_path / FILE
    text = path.read_bytes()
    assert text == sealed(json.loads(text[: text.rindex(b",")] + b"}")) and len(text) > 1000
    for at, byte in enumerate(text):
        for other in (bytes([byte ^ 1]), bytes([byte ^ 32]), b"0" if byte != 48 else b"7", b"", b" " + bytes([byte])):
            path.write_bytes(text[:at] + other + text[at + 1 :])
            with pytest.raises(CheckpointError, match=re.escape(FILE)):
                manifest.read(tmp_path)


def test_what_an_earlier_version_wrote_is_read_and_is_known_to_have_no_checksum(tmp_path):
    fields = manifest.as_json(replace(WHOLE, shards=tuple(SHARDS), format=manifest.UNSEALED))
    (tmp_path / FILE).write_text(json.dumps(fields))
    got = manifest.read(tmp_path)
    assert not got.sealed and got.run == WHOLE.run
    (tmp_path / FILE).write_bytes(sealed(fields))  # a present one, whose format alone was changed
    with pytest.raises(CheckpointError, match="damaged: its checksum does not match"):
        manifest.read(tmp_path)


def test_what_is_too_long_to_be_read_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "MOST_JSON_BYTES", 1000)
    with pytest.raises(CheckpointError, match="expected at most 1,000 bytes, got 2,"):
        manifest.write(tmp_path, replace(WHOLE, run={"text": "x" * 900}), SHARDS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_what_is_no_manifest(tmp_path, change):
    (tmp_path / FILE).write_bytes(sealed({**manifest.as_json(replace(WHOLE, shards=tuple(SHARDS))), **change}))
    with pytest.raises(CheckpointError, match="not a manifest that this version"):
        manifest.read(tmp_path)


def test_damage(tmp_path):
    manifest.write(tmp_path, WHOLE, SHARDS)
    path = tmp_path / FILE
    text = path.read_bytes()
    fields = json.loads(text)
    checksum = fields.pop("sha256")
    for name in fields:
        path.write_bytes(sealed({key: value for key, value in fields.items() if key != name}))
        with pytest.raises(CheckpointError, match=name):
            manifest.read(tmp_path)
    for damaged in (fields, {**fields, "sha256": checksum}):  # without, and with other blanks between
        path.write_text(json.dumps(damaged))
        with pytest.raises(CheckpointError, match="damaged: its checksum does not match"):
            manifest.read(tmp_path)
    for damaged in (text[:-5], b"", b"\xff\xfe", b"[1]", b"[" * 100_000, b'{"step": ' + 5000 * b"9" + b"}"):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="JSON"):
            manifest.read(tmp_path)
    path.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        manifest.read(tmp_path)


def test_pieces_come_back_and_earlier_versions_refuse_them(tmp_path):
    pieces = {"pipe0": Layout([("a", (3,))]), "pipe1": Layout([("b", (2, 2))], parts={"b": ((2, 4), (0, 2))})}
    shards = [ShardFile(f"{piece}{name}", 10, "0" * 64) for piece in pieces for name in ("server-0", "worker-0")]
    manifest.write(tmp_path, Manifest(3, 30, pieces=pieces), shards)
    got = manifest.read(tmp_path)
    assert got.pieces == pieces and got.format == manifest.IN_PIECES != manifest.FORMAT
    assert got.names("worker", "pipe1") == ["pipe1worker-0"] and got.names("worker") == []
    assert got.leaders == ["pipe0server-0", "pipe1server-0"]
    whole = Manifest(3, 30)
    assert "pieces" not in manifest.as_json(whole) and manifest.as_json(whole)["format"] == manifest.FORMAT


@pytest.mark.parametrize("pieces", [[], {}, {"../x": None}, {"Pipe0": None}, {"pipe0": {"align": 1}}])
def test_pieces_from_a_file_are_checked(tmp_path, pieces):
    made = Manifest(3, 30, pieces={"pipe0": Layout([("a", (3,))])}, shards=(ShardFile("worker-0", 1, "0" * 64),))
    text = manifest.encode(made)
    fields = json.loads(text) | {"pieces": pieces}
    del fields["sha256"]
    (tmp_path / FILE).write_bytes(sealed(fields))
    with pytest.raises(CheckpointError, match=r"pieces|layout"):
        manifest.read(tmp_path)


SHARING = [
    ShardFile("worker-0", 9, 64 * "a", (range(3), range(5, 8)), 9),
    ShardFile("worker-1", 9, 64 * "b", (range(3, 5), range(8, 9)), 9),
]


@pytest.mark.parametrize("pieces", [{}, {"pipe0": LAYOUT}])
def test_ranges_of_workers_that_share_vectors_come_back_and_earlier_versions_refuse_them(tmp_path, pieces):
    manifest.write(tmp_path, replace(WHOLE, pieces=pieces), SHARING)
    got = manifest.read(tmp_path)
    assert got.shards == tuple(SHARING)
    assert got.format == manifest.SHARED not in (manifest.FORMAT, manifest.IN_PIECES)
    assert got.pieces == pieces
    assert got.shared
    assert not WHOLE.shared
    told = json.loads((tmp_path / FILE).read_text())
    assert told["shards"][1]["ranges"] == [[3, 5], [8, 9]]
    assert told["shards"][1]["of"] == 9


@pytest.mark.parametrize(
    "change",
    [
        *({"ranges": each} for each in ([[2, 1]], [[0, 3], [2, 4]], [[0, 10]], [[-1, 2]], [3], [["a", 1]], 7, None)),
        *({"of": each} for each in (-1, 8.0, None, "9", 10**30)),
    ],
)  # fmt: skip
def test_ranges_from_a_file_are_checked(tmp_path, change):
    fields = json.loads(manifest.encode(replace(WHOLE, shards=tuple(SHARING))))
    del fields["sha256"]
    fields["shards"][1] |= change
    (tmp_path / FILE).write_bytes(sealed(fields))
    with pytest.raises(CheckpointError, match="shard"):
        manifest.read(tmp_path)
