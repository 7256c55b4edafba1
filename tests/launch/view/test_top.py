"""`psgd top` on a log of a real run, on a terminal and elsewhere."""

import json
import os
import pty
import subprocess
import sys
import threading
import time

import pytest
from click.testing import CliRunner

from psgd import training
from psgd.config import TrainConfig
from psgd.kernels.errors import DataError
from psgd.launch.view import top


def said(*arguments):
    result = CliRunner().invoke(top.top, [str(each) for each in arguments], catch_exceptions=False)
    assert "\033" not in result.output
    return result.output


@pytest.mark.ranks(4)
def test_the_log_of_a_run_has_all_that_the_table_shows(comm, tmp_path):
    log = tmp_path / "run.jsonl"
    options = {"inject": "slow:1:3,compute:0.02", "strategy": "async", "model": "softmax"}
    training.run(TrainConfig(epochs=5, log=log, **options), comm)
    if comm.rank == 0:
        whole = said("--once", log)
        assert "digits, softmax, async: 1 server, 3 workers; ended" in whole
        lines = log.read_text().splitlines()
        assert json.loads(lines[-1])["event"] == "end"
        log.write_text("\n".join(lines[:-1]) + '\n{"event": "pro')
        part = said(tmp_path)
        assert "; running" in part and "staleness    mean " in part
        rows = [line.split() for line in part.splitlines()[-3:]]
        assert [row[0] for row in rows] == ["0", "1", "2"] and all(int(row[1]) > 0 for row in rows)
    comm.Barrier()


def test_what_is_no_log_is_refused(tmp_path):
    with pytest.raises(DataError, match="there is no such file"):
        said(tmp_path / "none")
    with pytest.raises(DataError, match="expected a folder with a"):
        said(tmp_path)
    (tmp_path / "a.jsonl").touch()
    for seconds in ("0", "nan", "1e9"):
        with pytest.raises(DataError, match="--every: expected seconds"):
            said(tmp_path, "--every", seconds)


def test_of_a_folder_the_newest_log_is_taken(tmp_path):
    for name, when in (("a", 100), ("b", 300), ("c", 200)):
        (tmp_path / f"{name}.jsonl").touch()
        os.utime(tmp_path / f"{name}.jsonl", (when, when))
    assert top.find(tmp_path).name == "b.jsonl"


@pytest.mark.one_mpi
def test_on_a_terminal_it_is_drawn_again_until_the_run_ends(tmp_path):
    log = tmp_path / "run.jsonl"
    start = {"event": "start", "workers": 30, "servers": 0, "strategy": "hogwild", "epochs": 10, "samples": 100}
    log.write_text(json.dumps(start) + "\n")
    ours, theirs = pty.openpty()
    os.set_blocking(ours, True)
    command = [sys.executable, "-m", "psgd.launch", "top", str(log), "--every", "0.1"]
    environment = os.environ | {"COLUMNS": "60", "LINES": "20"}
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=environment)
    os.close(theirs)
    seen = bytearray()

    def read():
        try:
            while data := os.read(ours, 65536):
                seen.extend(data)
        except OSError:  # the terminal has gone
            pass

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    for samples in (100, 200, 300):
        with log.open("a") as file:
            line = {"event": "workers", "time": samples / 100, "samples": samples, "pushes": [samples] * 30}
            file.write(json.dumps(line | {"waited_s": [0.5] * 30}) + "\n")
        deadline = time.monotonic() + 30
        while f"epoch {samples // 100}/10".encode() not in seen and time.monotonic() < deadline:
            time.sleep(0.02)
    with log.open("a") as file:
        file.write(json.dumps({"event": "end", "seconds": 3.5, "samples": 300}) + "\n")
    assert process.wait(30) == 0
    thread.join(5)
    os.close(ours)
    text = seen.decode()
    drawn, _, last = text.partition("\033[?25h\033[?1049l")
    assert all(f"epoch {n}/10" in drawn for n in (1, 2, 3)), text
    screens = drawn.split("\033[H")[1:]
    assert len(screens) >= 4
    assert all(screen.count("\n") < 20 for screen in screens)
    assert all(len(line.rstrip("\r")) < 60 + len("\033[K\033[J") for screen in screens for line in screen.split("\n"))
    assert "more lines" in drawn
    assert "; ended, 3.5 s" in last and "\033" not in last
