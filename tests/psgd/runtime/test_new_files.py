"""What a hostile neighbour or a full disk can do to a file that psgd makes: nothing."""

import builtins
import os
import re
import resource
import secrets
import stat

import pytest

import psgd
from psgd.kernels.errors import UsageError
from psgd.runtime import new_files
from psgd.runtime.new_files import SideFile, open_named, open_text, replacing

OTHERS = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of another user")


@pytest.fixture(autouse=True)
def nothing_lost(monkeypatch):
    monkeypatch.setattr(new_files, "_lost", [])


def foreign_link(path, target):
    path.symlink_to(target)
    os.lchown(path, OTHERS, OTHERS)


def test_a_file_is_there_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old" and len(os.listdir(tmp_path)) == 2
    assert path.read_bytes() == b"new"
    with pytest.raises(ZeroDivisionError), replacing(path) as file:
        file.write(b"half" * (1 // 0))
    assert path.read_bytes() == b"new" and os.listdir(tmp_path) == ["a.bin"]


def test_no_temporary_name_can_be_prepared(tmp_path, monkeypatch):
    names = []
    opened = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest: names.append((str(path), rest)) or opened(path, *rest))
    for _ in range(2):
        with replacing(tmp_path / "a.bin"):
            pass
    first, second = (name for name, _ in names)
    assert first != second and str(os.getpid()) not in first
    assert all(rest[0] & (os.O_EXCL | os.O_NOFOLLOW) == os.O_EXCL | os.O_NOFOLLOW for _, rest in names)
    # Even one that guesses the name wins nothing.
    monkeypatch.setattr(secrets, "token_hex", lambda _: "guessed")
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".psgd-guessed.part").symlink_to(victim)
    with pytest.raises(FileExistsError), replacing(tmp_path / "a.bin"):
        pass
    assert victim.read_text() == "mine"


def test_the_umask_decides_who_reads_it_and_long_names_are_possible(tmp_path):
    path = tmp_path / ("x" * 255)
    before = os.umask(0o027)
    try:
        with replacing(path):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_full_disk_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(OSError, match="too large"), replacing(path) as file:
            file.write(bytes(1 << 17))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["a.bin"]


@as_root
def test_no_link_of_another_user_is_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    foreign_link(tmp_path / "run.jsonl", victim)
    with pytest.raises(PermissionError, match="another user"):
        open_named(tmp_path / "run.jsonl", os.O_WRONLY | os.O_CREAT)
    with pytest.raises(PermissionError, match="another user"):
        open_text(tmp_path / "run.jsonl", append=True)
    with pytest.raises(UsageError, match=r"--log .*link that another user made"):
        new_files.check("--log", tmp_path / "run.jsonl")
    assert victim.read_text() == "mine"
    foreign_link(tmp_path / "step.part", tmp_path)
    with pytest.raises(PermissionError, match="another user"):
        new_files.own_folder(tmp_path / "step.part")
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", OTHERS, OTHERS)
    with pytest.raises(PermissionError, match="another user"):
        new_files.own_folder(tmp_path / "theirs")


def test_links_of_ones_own_are(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "log")
    new_files.check("--log", tmp_path / "link")
    with open_text(tmp_path / "link") as file:
        file.write("a\n")
    assert (tmp_path / "log").read_text() == "a\n" and (tmp_path / "link").is_symlink()
    new_files.own_folder(tmp_path / "folder")
    new_files.own_folder(tmp_path / "folder")


@pytest.mark.parametrize(
    ("there", "wanted"),
    [(None, "new\n"), (b"", "new\n"), (b"old\n", "old\nnew\n"), (b'{"torn', '{"torn\nnew\n'), (b"\0\0", "\0\0\nnew\n")],
)
def test_appending_begins_a_line(there, wanted, tmp_path):
    path = tmp_path / "log"
    if there is not None:
        path.write_bytes(there)
    for text in ("new\n", "more\n"):
        with open_text(path, append=True) as file:
            file.write(text)
    assert path.read_text() == wanted + "more\n"
    with open_text(path) as file:
        file.write("donn\udce9es \ud800\n")
    assert path.read_bytes() == b"donn\xe9es \\ud800\n"


def test_what_is_no_plain_file_is_written_too():
    with open_text(new_files.Path("/dev/null"), append=True) as file:
        file.write("x\n")


@pytest.mark.parametrize("buffered", [False, True])
def test_a_full_disk_costs_the_file_and_is_said_once(buffered, capfd):
    file = SideFile("log a", open("/dev/full", "w") if buffered else open_text(new_files.Path("/dev/full")))  # noqa: SIM115
    assert file.open
    for _ in range(2):
        file.write("line\n")
        file.flush()
    assert not file.open
    file.close()
    file.close()
    assert capfd.readouterr().err == "psgd: warning: log a: No space left on device; it ends here\n"
    assert new_files.lost() == ["log a"]


def test_what_is_lost_at_the_end_is_lost_too(capfd):
    file = SideFile("record a", builtins.open("/dev/full", "w"))  # noqa: SIM115
    file.write("line\n")
    file.close()
    assert new_files.lost() == ["record a"]


def test_no_file_writes_nothing():
    file = SideFile("log", None)
    file.write("x")
    file.close()
    assert not file.open and new_files.lost() == []


def test_no_file_is_named_after_a_process():
    """A process's number can be guessed; so can a file's name that has it."""
    root = new_files.Path(psgd.__file__).resolve().parent.parent
    named = re.compile(r"""f["'][^"' \n]*\{os\.getpid\(\)""")
    sources = [path for room in ("psgd", "launch", "collectives", "kernels") for path in (root / room).rglob("*.py")]
    assert len(sources) > 300
    assert [str(path) for path in sources if named.search(path.read_text())] == []


def test_a_name_that_is_too_long_is_one_line(tmp_path):
    with pytest.raises(UsageError, match="cannot be written: File name too long"):
        new_files.check("--save", tmp_path / ("x" * 5000))
