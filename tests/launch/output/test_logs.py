import re
import sys

import pytest

pytestmark = pytest.mark.job


TALKING = """
import importlib.util, sys, types, warnings
training = types.ModuleType("psgd.training")
training.__path__ = importlib.util.find_spec("psgd.training").submodule_search_locations  # its parts are real
def run(config, comm, on_progress=None, *rest):
    on_progress.start(100, 1)
    on_progress.update(100, 1, 0.5, 0.75)
    print(f"print of {comm.rank}")
    sys.stderr.write(f"bar\\rbar of {comm.rank}\\n")
    warnings.warn(f"warning of {comm.rank}")
    if FAIL and comm.rank == 2:
        raise ValueError("went wrong")
    return {"test_accuracy": 0.75} if comm.rank == 0 else None
training.run = run
sys.modules["psgd.training"] = training
from psgd.launch.cli import main
main()
"""


def talk(job, *options, fail=False, n=3):
    script = job.folder / "psgd"
    script.write_text(TALKING.replace("FAIL", str(fail)))
    return job(n, [sys.executable, str(script), "train", "--epochs", "1", "--json", *options], timeout=60)


def test_lines_say_whose_they_are(job):
    result = talk(job)
    assert result.returncode == 0, result.stderr
    out, err = result.stdout.splitlines(), result.stderr.splitlines()
    assert sorted(out) == ["[1/3] print of 1", "[2/3] print of 2", "print of 0", '{"test_accuracy": 0.75}']
    assert {f"[{rank}/3] bar of {rank}" for rank in range(3)} < set(err)
    for rank in range(3):
        assert sum(bool(re.match(rf"\[{rank}/3\] .*UserWarning: warning of {rank}", line)) for line in err) == 1
    assert sum(line.startswith("3 ranks on 1 node (1 server, 2 workers)") for line in err) == 1
    assert sum(line.startswith("epoch 1/1") for line in err) == 1
    assert "\r" not in result.stdout + result.stderr


def test_the_lines_of_a_failure_do_too(job):
    result = talk(job, fail=True)
    assert result.returncode != 0
    assert result.stderr.count("ValueError: went wrong") == 1
    assert re.search(r"^psgd: \[2/3\] \S+: this rank failed and ends the job$", result.stderr, re.M)
    for line in ("Traceback (most recent call last):", "ValueError: went wrong"):
        assert f"\n[2/3] {line}\n" in result.stderr


def test_a_file_a_rank(job, tmp_path):
    folder = tmp_path / "new" / "logs"
    assert talk(job, "--log-dir", str(folder)).returncode == 0
    result = talk(job, "--log-dir", str(folder), fail=True)
    assert result.returncode != 0
    assert result.stderr.count("ValueError: went wrong") == 1  # the user is told too
    assert "print of" not in result.stdout
    assert "warning of" not in result.stderr
    texts = [(folder / f"rank-{rank:04d}.log").read_text() for rank in range(3)]
    for rank, text in enumerate(texts):
        assert len(re.findall(rf"^-- 20\S+ rank {rank}/3 on \S+, process \d+$", text, re.M)) == 2  # appended
        assert text.count(f"print of {rank}\n") == 2
        assert text.count(f"UserWarning: warning of {rank}\n") == 2
    assert [text.count("ValueError: went wrong") for text in texts] == [0, 0, 1]
    assert (texts[0].count("epoch 1/1  loss"), texts[0].count('"test_accuracy"')) == (2, 2)


def test_a_folder_that_cannot_be(job, tmp_path):
    (tmp_path / "file").touch()
    result = talk(job, "--log-dir", str(tmp_path / "file" / "logs"), n=2)
    assert result.returncode == 2
    assert result.stderr.count("psgd: error: --log-dir") == 1
    assert "cannot be created: Not a directory" in result.stderr
