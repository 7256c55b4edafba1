import os
import pickle
import signal
import subprocess
import sys
import time

import pytest

from psgd.kernels.cache import code_store
from psgd.kernels.cache.code_store import CodeStore

NAME, STAMP, CONTENT = "loss.f-0123", b"version 1", bytes(range(200))
HOLDER = (
    "import sys, time\nfrom pathlib import Path\nfrom psgd.kernels.cache.code_store import CodeStore\n"
    f"with CodeStore([Path(sys.argv[1])]).alone({NAME!r}):\n    print('in', flush=True)\n    time.sleep(60)\n"
)


def test_what_was_put_is_found_by_its_name_and_stamp(tmp_path):
    store = CodeStore([tmp_path / "a" / "b"])
    store.put(NAME, STAMP, CONTENT)
    assert store.get(NAME, STAMP) == CONTENT
    assert CodeStore([tmp_path / "a" / "b"]).get(NAME, STAMP) == CONTENT
    assert store.get(NAME, b"version 2") is None and store.unusable is None
    assert store.get("other", STAMP) is None and store.unusable is None
    store.put(NAME, b"version 2", b"new")
    assert store.get(NAME, b"version 2") == b"new"
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == [NAME]


def test_a_file_under_another_name_is_not_taken(tmp_path):
    store = CodeStore([tmp_path])
    store.put(NAME, STAMP, CONTENT)
    (tmp_path / NAME).rename(tmp_path / "loss.g-4567")
    assert store.get("loss.g-4567", STAMP) is None


def test_no_damage_is_taken_for_content(tmp_path):
    store = CodeStore([tmp_path])
    store.put(NAME, STAMP, CONTENT)
    path = tmp_path / NAME
    whole = path.read_bytes()
    damaged = [whole[:length] for length in range(len(whole))]
    damaged += [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    damaged += [whole + b"x", b"garbage", pickle.dumps(("0.60", CONTENT))]
    for data in damaged:
        path.write_bytes(data)
        assert store.get(NAME, STAMP) is None
    assert store.unusable == f"{path}: it is damaged"
    store.put(NAME, STAMP, CONTENT)
    assert store.get(NAME, STAMP) == CONTENT and store.unusable is None


@pytest.mark.parametrize("what", ["a link", "a folder", "group", "others"])
def test_files_that_others_may_have_written_are_not_read(tmp_path, what):
    store = CodeStore([tmp_path / "store"])
    store.put(NAME, STAMP, CONTENT)
    path = tmp_path / "store" / NAME
    if what == "a link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    elif what == "a folder":
        path.unlink()
        path.mkdir()
    else:
        path.chmod(0o664 if what == "group" else 0o646)
    assert store.get(NAME, STAMP) is None
    assert store.unusable.startswith(str(path))


def test_folders_that_others_may_write_are_not_used(tmp_path):
    CodeStore([tmp_path / "open"]).put(NAME, STAMP, CONTENT)
    (tmp_path / "open").chmod(0o777)
    store = CodeStore([tmp_path / "open", tmp_path / "own"])
    assert store.folder == tmp_path / "own"
    assert store.refused == [f"{tmp_path / 'open'}: others can write there"]
    assert store.get(NAME, STAMP) is None


def test_another_users_files_are_foreign_and_roots_are_not(tmp_path):
    def owned_by(user):
        return os.stat_result((0o100644, 1, 1, 1, user, 0, 0, 0, 0, 0))

    for user in (0, os.geteuid(), os.stat(code_store.__file__).st_uid):
        assert code_store._foreign(owned_by(user)) is None
    assert code_store._foreign(owned_by(54321)) == "it belongs to another user (54321)"


def test_a_new_folder_is_nobody_elses_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        store = CodeStore([tmp_path / "store"])
        store.put(NAME, STAMP, CONTENT)
    finally:
        os.umask(before)
    assert store.get(NAME, STAMP) == CONTENT


def test_the_first_folder_that_can_be_written_is_and_all_are_read(tmp_path):
    CodeStore([tmp_path / "second"]).put(NAME, STAMP, CONTENT)
    (tmp_path / "file").touch()
    store = CodeStore([tmp_path / "file" / "x", tmp_path / "first", tmp_path / "second"])
    assert store.folder == tmp_path / "first" and store.get(NAME, STAMP) == CONTENT
    nowhere = CodeStore([tmp_path / "file" / "x"])
    assert nowhere.folder is None and nowhere.refused == [f"{tmp_path / 'file' / 'x'}: Not a directory"]
    nowhere.put(NAME, STAMP, CONTENT)
    with nowhere.alone(NAME):
        assert nowhere.first("speaker") is None


def test_a_full_disk_leaves_nothing_behind(tmp_path):
    script = (
        "import sys, resource\nfrom pathlib import Path\nfrom psgd.kernels.cache.code_store import CodeStore\n"
        "store = CodeStore([Path(sys.argv[1])])\nresource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "try:\n    store.put('x', b'', bytes(1000))\nexcept OSError as error:\n    print(error.strerror)\n"
        "print(CodeStore([Path(sys.argv[1])]).refused)\n"
    )
    words = [sys.executable, "-c", script, tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"File too large\n['{tmp_path}: File too large']\n"
    assert list(tmp_path.iterdir()) == []


def holder(folder):
    process = subprocess.Popen([sys.executable, "-c", HOLDER, folder], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "in\n"
    return process


def test_a_killed_process_is_not_waited_for(tmp_path):
    with holder(tmp_path) as process:
        began = time.monotonic()
        process.send_signal(signal.SIGKILL)
        with CodeStore([tmp_path]).alone(NAME):
            assert time.monotonic() - began < 10


def test_a_stopped_process_is_waited_for_once(tmp_path, monkeypatch):
    monkeypatch.setattr(code_store, "WAIT_S", 0.3)
    with holder(tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        store, began = CodeStore([tmp_path]), time.monotonic()
        for _ in range(20):
            with store.alone(NAME):
                pass
        assert 0.3 <= time.monotonic() - began < 5
        process.kill()


def test_file_systems_without_locks_keep_nobody_waiting(tmp_path, monkeypatch):
    def refuse(handle, operation):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(code_store.fcntl, "flock", refuse)
    store = CodeStore([tmp_path])
    with store.alone(NAME):
        assert store.first("speaker") is None


def test_only_one_is_first(tmp_path):
    store = CodeStore([tmp_path])
    assert [store.first("a"), store.first("a"), store.first("b")] == [True, False, True]
