"""Files appear whole or not at all; what is read may be anything."""

import json
import os
import resource

import pytest

from psgd.checkpoint import files
from psgd.kernels.errors import CheckpointError


def test_a_file_is_all_its_chunks_and_replaces_the_old_one(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old and longer than what follows")
    files.write_whole(path, [b"one", memoryview(b"two"), b"", bytearray(b"x" * 100_000)])
    assert path.read_bytes() == b"onetwo" + b"x" * 100_000
    assert os.listdir(tmp_path) == ["a.bin"]


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path):
    def chunks():
        yield b"new"
        raise RuntimeError("the source failed")

    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError, match="the source failed"):
        files.write_whole(path, chunks())
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["a.bin"]


def test_a_full_disk_is_an_error(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            files.write_whole(tmp_path / "a.bin", [b"data", memoryview(bytes(1 << 17))])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == []


def test_json_there_and_back(tmp_path):
    value = {"step": 3, "names": ["ä", None], "x": 0.1}
    text = json.dumps(value).encode()
    assert files.write_whole(tmp_path / "a.json", [text[:5], text[5:]]) == len(text)
    assert files.parse_object(files.read_text(tmp_path / "a.json"), "a.json") == value
    files.sync_folder(tmp_path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "not JSON"),
        (b'{"a": 1', "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b"[1]", "expected a JSON object, got a list"),
        (b"null", "expected a JSON object, got a NoneType"),
    ],
)
def test_what_is_no_json_object_is_named(tmp_path, text, why):
    path = tmp_path / "a.json"
    path.write_bytes(text)
    with pytest.raises(CheckpointError, match=f"a.json: {why}"):
        files.parse_object(files.read_text(path), "a.json")


def test_a_file_that_is_too_long_is_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_JSON_BYTES", 10)
    (tmp_path / "a.json").write_bytes(b'{"a": "0123456789"}')
    with pytest.raises(CheckpointError, match="expected at most 10 bytes of JSON"):
        files.read_text(tmp_path / "a.json")


@pytest.mark.parametrize("kind", ["missing", "link", "pipe", "folder"])
def test_only_plain_files_are_opened_and_nothing_is_waited_for(tmp_path, kind):
    path = tmp_path / "a.json"
    if kind == "link":
        (tmp_path / "b").write_text("{}")
        path.symlink_to(tmp_path / "b")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    with pytest.raises(CheckpointError, match=r"a.json: (cannot be read|expected a plain file)"):
        files.open_plain(path)
