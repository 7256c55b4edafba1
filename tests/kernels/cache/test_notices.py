import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys, time
from pathlib import Path
from psgd.kernels.cache import notices
from psgd.kernels.cache.code_store import CodeStore

notices.SILENT_S = 0.2
store = CodeStore([Path(sys.argv[1])])
for _ in range(3):
    with notices.compiling(store), notices.compiling(store):
        time.sleep(float(sys.argv[2]))
notices.warn(store, "put", "no space")
notices.warn(store, "put", "no space")
time.sleep(float(sys.argv[3]))
"""


def said(folder, seconds, *ranks, stay="0"):
    """The lines of processes with these ranks, and ranks on their nodes."""
    processes = []
    for rank, local in ranks:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI", "SLURM"))}
        if rank is not None:
            env |= {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(local)}
        words = [sys.executable, "-c", SCRIPT, str(folder), seconds, stay]
        processes.append(subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True))
    return sorted(line for process in processes for line in process.communicate(timeout=60)[1].splitlines())


def test_one_rank_says_that_it_compiles_and_warns(tmp_path):
    lines = said(tmp_path, "0.2", (0, 0), (1, 1), (2, 2), stay="2")
    assert lines == [
        f"psgd: compiling for this processor (once; cached in {tmp_path})",
        "psgd: warning: no space",
    ]


@pytest.mark.parametrize(("seconds", "rank"), [("0.01", (None, None)), ("0.2", (7, 0))])
def test_nothing_is_said_of_short_work_or_by_other_nodes_soon(tmp_path, seconds, rank):
    (line,) = said(tmp_path, seconds, rank)
    assert line.endswith("warning: no space")


def test_where_nothing_is_kept_rank_0_speaks(tmp_path):
    (tmp_path / "file").touch()
    lines = said(tmp_path / "file" / "x", "0.2", (0, 0), (1, 1))
    assert lines == ["psgd: compiling for this processor", "psgd: warning: no space"]
