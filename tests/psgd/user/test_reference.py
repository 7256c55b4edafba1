"""What `FILE.py:FUNCTION` is, and what is said of a file that is not run."""

from pathlib import Path

import pytest

from psgd.kernels.errors import UsageError
from psgd.user import reference


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("net.py:make", True),
        ("/a b/net.py:Net", True),
        ("net.py", False),
        ("net.py:", False),
        ("net.py:a-b", False),
        ("net:make", False),
        ("mlp", False),
        ("C:net.py", False),
    ],
)
def test_its_form(text, is_one):
    assert reference.is_reference(text) == is_one
    assert (reference.find("--model", text) is not None) == is_one


def test_what_it_names():
    found = reference.find("--model", "a/net.py:make")
    assert (found.path, found.function, found.name) == (Path("a/net.py"), "make", "net.py:make")
    assert found.where == "--model a/net.py:make"
    assert reference.find("--model", "~/net.py:make").path == Path.home() / "net.py"


def test_a_checkpoint_has_no_folder_and_a_batch_script_has_the_whole_path(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert [reference.plain(text) for text in ("a/net.py:make", "mlp", "a/b")] == ["net.py:make", "mlp", "a/b"]
    assert reference.absolute("a/net.py:make") == f"{tmp_path}/a/net.py:make"
    assert [reference.absolute(text) for text in ("/net.py:make", "mlp", "a/b")] == ["/net.py:make", "mlp", "a/b"]


SOURCE = b"""
raise RuntimeError("was run")
from other import imported
assigned = lambda: 1
class Net: ...
def make(): local = 1
"""


@pytest.mark.parametrize("name", ["imported", "assigned", "Net", "make"])
def test_a_function_is_found_without_running_the_file(tmp_path, name):
    (tmp_path / "net.py").write_bytes(SOURCE)
    reference.check(reference.find("--model", f"{tmp_path}/net.py:{name}"))


@pytest.mark.parametrize(
    ("source", "name", "message"),
    [
        (SOURCE, "local", "net.py has no function local; it defines Net, make"),
        (SOURCE, "makes", r"net.py has no function makes; did you mean make\?"),
        (b"", "make", "net.py has no function make; it defines none"),
        (b"x = 1\ndef make(:\n", "make", r"not Python: .*\(net.py, line 2\)"),
        (b"\0", "make", "not Python: .*null byte"),
        (b"# coding: none-such\n", "make", "not Python: .*none-such"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path, source, name, message):
    (tmp_path / "net.py").write_bytes(source)
    with pytest.raises(UsageError, match=f"^--model {tmp_path}/net.py:{name}: {message}") as caught:
        reference.check(reference.find("--model", f"{tmp_path}/net.py:{name}"))
    assert "\n" not in str(caught.value)


def test_names_that_only_running_shows_are_left_to_the_ranks(tmp_path):
    (tmp_path / "net.py").write_text("from other import *")
    reference.check(reference.find("--model", f"{tmp_path}/net.py:make"))


@pytest.mark.parametrize("kind", ["missing", "folder"])
def test_a_file_that_cannot_be_read(tmp_path, kind):
    if kind == "folder":
        (tmp_path / "net.py").mkdir()
    with pytest.raises(UsageError, match=r"^--model .*net.py:make: .*net.py cannot be read: (No such file|Is a dir)"):
        reference.check(reference.find("--model", f"{tmp_path}/net.py:make"))
