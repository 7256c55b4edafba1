"""Leaving a job: at once where ranks have died, else as ever."""

import subprocess
import sys

from harness import mpi

CODE = """
import atexit
from types import SimpleNamespace
from psgd.runtime.ulfm.leave import leave
from psgd.runtime.ulfm.tolerance import TOLERANCE

def comm(size):
    return SimpleNamespace(Get_size=lambda: size)

atexit.register(print, "as ever")
leave(comm(3), 4)
TOLERANCE.survivors = comm(3)
leave(comm(3), 4)
print("all live", end=" ")
TOLERANCE.survivors = comm(2)
LAST
"""


def run(last):
    words = [sys.executable, "-c", CODE.replace("LAST", last)]
    return subprocess.run(words, env=mpi.environment("none"), capture_output=True, text=True, timeout=30, check=False)


def test_without_those_who_died_it_is_at_once():
    done = run("leave(comm(3), 4)")
    assert done.returncode == 4 and done.stdout == "all live "


def test_else_the_program_ends_as_ever():
    done = run("")
    assert done.returncode == 0 and done.stdout == "all live as ever\n"
