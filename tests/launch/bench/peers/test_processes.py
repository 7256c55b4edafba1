"""Peers' processes end: by themselves, on time-out with all their children, and with a message."""

import os
import signal
import subprocess
import sys
import time

import pytest

from psgd.launch.bench.peers import processes


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ends(pid, within_s=10):
    """SIGKILL is sent before `stop` returns; on a busy machine the process takes its time to vanish."""
    limit = time.monotonic() + within_s
    while alive(pid) and time.monotonic() < limit:
        time.sleep(0.05)
    return not alive(pid)


def test_output_and_environment():
    code = "import os, psgd; print(os.environ['OMP_NUM_THREADS'], psgd.__name__)"
    assert processes.output([sys.executable, "-c", code], 30) == "1 psgd\n"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 always looks in the current folder first")
def test_modules_of_the_current_folder_are_not_taken_for_psgds_own(tmp_path, monkeypatch):
    (tmp_path / "psgd").mkdir()
    (tmp_path / "psgd" / "__init__.py").write_text("raise SystemExit(7)")
    (tmp_path / "click.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    assert "psgd" in processes.output(processes.python("psgd.launch", "--version"), 30)


def test_failure_tells_the_last_lines():
    with pytest.raises(RuntimeError, match=r"(?s)exit code 3.*broken"):
        processes.output([sys.executable, "-c", "import sys; print('broken', file=sys.stderr); sys.exit(3)"], 30)


def test_time_out_ends_children_too(tmp_path):
    note = tmp_path / "pid"
    code = (
        "import pathlib, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"pathlib.Path({str(note)!r}).write_text(str(child.pid))\n"
        "time.sleep(60)"
    )
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="no result within 3 s"):
        processes.output([sys.executable, "-c", code], 3)
    assert time.monotonic() - start < 15
    assert ends(int(note.read_text()))


def test_stop_twice_and_after_the_end():
    process = processes.start([sys.executable, "-c", "pass"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    process.wait(30)
    processes.stop(process)
    processes.stop(process)
    assert process.returncode == 0
    assert os.getpgid(0) != process.pid


def test_a_conversation_ends_with_either_side():
    code = (
        "from psgd.launch.bench.peers import processes\n"
        "def reply(x):\n"
        "    if x < 0: raise ValueError('below')\n"
        "    return {'twice': 2 * x}\n"
        "processes.answer(reply)"
    )
    talk = processes.Conversation([sys.executable, "-c", code])
    assert talk.ask(30, x=4) == {"twice": 8}
    assert talk.ask(30, x=-1) == {"error": "ValueError: below"}
    assert talk.ask(30, y=1)["error"].startswith("TypeError")
    talk.signal(19)
    assert talk.ask(0.2, x=1) is None  # in time
    talk.signal(18)
    talk.close()
    assert ends(talk.pid)
    assert talk.ask(30, x=1) is None
    talk.close()


def test_a_child_may_use_the_cores_of_who_started_its_parent():
    before = os.sched_getaffinity(0)
    code = (
        "import os\nfrom psgd.launch.bench.peers import processes\n"
        "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "processes.bind(processes.launcher_cores())\n"
        "print(sorted(os.sched_getaffinity(0)))"
    )
    assert processes.output([sys.executable, "-c", code], 30) == f"{sorted(before)}\n"


def test_variables_are_added():
    code = "import os; print(os.environ['A_SETTING'])"
    assert processes.output([sys.executable, "-c", code], 30, {"A_SETTING": "4"}) == "4\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_child_ends_with_its_parent(number):
    code = (
        "import subprocess, sys; from psgd.launch.bench.peers import processes\n"
        "words = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        "print(processes.start(words, stdin=subprocess.DEVNULL, stderr=None).pid, flush=True)\n"
        "sys.stdin.read()"
    )
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        parent.send_signal(number)
        assert parent.wait(10) == -number
        assert ends(child)
