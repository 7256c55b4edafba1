import io
import sys

import pytest

from psgd.kernels.notice import counted, in_mesh, listed, say


def test_one_line_on_stderr_or_elsewhere(capsys):
    other = io.StringIO()
    say("warning: something")
    say("warning: there", other)
    assert capsys.readouterr() == ("", "psgd: warning: something\n") and other.getvalue() == "psgd: warning: there\n"


@pytest.mark.parametrize("broken", ["closed", "full", "none"])
def test_without_a_stderr_nothing_is_said_and_nothing_fails(broken, capsys, monkeypatch):
    stream = None if broken == "none" else open("/dev/full", "w")  # noqa: SIM115
    if broken == "closed":
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    say("warning: nobody listens")
    monkeypatch.undo()
    assert capsys.readouterr().out == ""
    if broken == "full":
        with pytest.raises(OSError, match="No space"):
            stream.close()


def test_one_thing_and_several():
    assert [counted(n, "worker") for n in (0, 1, 1200)] == ["0 workers", "1 worker", "1,200 workers"]
    assert counted(2, "batch", "es") == "2 batches"
    assert [listed([3]), listed([3, 5])] == ["rank 3", "ranks 3, 5"]


def test_places_in_a_mesh():
    assert in_mesh({"pipe": 1, "tensor": 0}, {"pipe": 2, "tensor": 2}) == "pipe=1,tensor=0"
    assert in_mesh({"pipe": 0, "tensor": 1}, {"pipe": 1, "tensor": 2}) == "tensor=1"
    assert in_mesh({"pipe": 0}, {"pipe": 1}) == ""
