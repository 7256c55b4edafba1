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


def common(path):
    """A folder that all can write to, as /tmp."""
    path.mkdir()
    path.chmod(0o1777)
    return path


@as_root
def test_no_folder_is_reached_through_a_link_of_another_user(tmp_path):
    (tmp_path / "mine").mkdir()
    link = common(tmp_path / "tmp") / "link"
    foreign_link(link, tmp_path / "mine")
    for name in ("", "below", "below/below"):
        with pytest.raises(PermissionError, match="another user"):
            new_files.make_folder(link / name)
    with pytest.raises(PermissionError, match="another user"):
        open_named(link / "log", os.O_WRONLY | os.O_CREAT)
    with pytest.raises(PermissionError, match="another user"), replacing(link / "w.npz"):
        pass
    for replaced in (False, True):
        with pytest.raises(UsageError, match=r"--save .*tmp/link is a symbolic link that another user made"):
            new_files.check("--save", link / "w.npz", replaced)
    assert os.listdir(tmp_path / "mine") == []
    os.lchown(link, 0, 0)
    new_files.make_folder(link / "below")
    assert os.listdir(tmp_path / "mine") == ["below"]


@as_root
def test_links_that_lay_out_a_file_system_are_followed(tmp_path):
    """In a folder that only its owner can write to, whoever made the link."""
    (tmp_path / "scratch").mkdir()
    foreign_link(tmp_path / "home", tmp_path / "scratch")
    new_files.make_folder(tmp_path / "home" / "run")
    with replacing(tmp_path / "home" / "run" / "w.npz"):
        pass
    assert os.listdir(tmp_path / "scratch" / "run") == ["w.npz"]


@as_root
def test_no_link_in_a_folder_of_its_maker_is_followed(tmp_path):
    """As a file that psgd itself names, in a folder that another user has prepared."""
    victim, theirs = tmp_path / "victim", tmp_path / "theirs"
    victim.write_text("mine")
    theirs.mkdir()
    os.chown(theirs, OTHERS, OTHERS)
    foreign_link(theirs / "rank-0000.log", victim)
    with pytest.raises(PermissionError, match="another user"):
        open_text(theirs / "rank-0000.log", append=True)
    assert victim.read_text() == "mine"


@as_root
@pytest.mark.parametrize("make", [lambda path: path.write_text("theirs"), os.mkfifo])
def test_what_another_user_left_in_a_common_folder_is_not_written(tmp_path, make):
    path = common(tmp_path / "tmp") / "run.jsonl"
    make(path)
    os.chown(path, OTHERS, OTHERS)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(PermissionError, match="another user made"):
        open_text(path)
    with pytest.raises(UsageError, match=r"--log .*is a file that another user made, in a folder that all can"):
        new_files.check("--log", path)
    new_files.check("--save", path, replaced=True)
    assert not path.is_file() or path.read_text() == "theirs"
    os.chown(path, 0, 0)
    with open_text(path) as file:
        file.write("mine\n")
    assert os.read(reader, 100) == b"mine\n"
    os.close(reader)


@pytest.mark.timeout(20)
def test_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a pipe that nobody reads"):
        open_text(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with open_text(tmp_path / "pipe", append=True) as file:
        assert os.get_blocking(file.fileno())
        file.write("line\n")
    assert os.read(reader, 100) == b"line\n"
    os.close(reader)


@pytest.mark.parametrize("encoding", ["ascii", "utf-8", "latin-1", "cp037", "utf-16", "utf-16-le", "utf-32", "utf-7"])
def test_names_can_be_written_in_any_encoding(encoding):
    for text in ("donn\udce9es", "\ud800", "\u4e2d\udcff"):
        assert text.encode(encoding, new_files.AS_NAMES)


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
