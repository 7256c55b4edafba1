import os
import pickle
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from psgd.kernels.cache import code_cache

SCRIPT = """
import os, resource, sys, time
if "LIMIT" in os.environ:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(os.environ["LIMIT"]),) * 2)
import numpy as np
from numba import types
from numba.core import compiler
from psgd.kernels.jit import compile_callback, kernel

plain, compiled = compiler.compile_extra, []

def count(*given, **arguments):
    compiled.append(given[2].__name__)
    return plain(*given, **arguments)

compiler.compile_extra = count

if "HELD_UP" in os.environ:
    from psgd.kernels.cache.code_store import CodeStore
    alone, asked = CodeStore.alone, os.environ["HELD_UP"]

    def held_up(store, name):
        open(asked, "w").close()
        while os.path.exists(asked):
            time.sleep(0.01)
        return alone(store, name)

    CodeStore.alone = held_up

@kernel
def twice(x):
    for i in range(x.size):
        x[i] *= 2

values = np.arange(3.0)
while time.time() < float(os.environ.get("START", 0)):
    pass
twice(values)
element = np.float32
def store(address: int) -> None:
    element(address)
callback = compile_callback(types.void(types.int64), store)
print(compiled.count("twice"), compiled.count("store"), values.tolist())
"""
COMPILED, LOADED = "1 1 [0.0, 2.0, 4.0]\n", "0 0 [0.0, 2.0, 4.0]\n"


@pytest.fixture
def script(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "script.py").write_text(SCRIPT)
    return tmp_path / "own" / "script.py"


def start(script, folder, **variables):
    env = os.environ | {"NUMBA_CACHE_DIR": str(folder)} | variables
    return subprocess.Popen(
        [sys.executable, script], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(script, folder, **variables):
    process = start(script, folder, **variables)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    return out, err


def test_code_is_kept_for_one_processor_and_one_source(script, tmp_path):
    other = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    assert run(script, tmp_path) == (COMPILED, "")
    assert run(script, tmp_path, **other) == (COMPILED, "")
    assert run(script, tmp_path) == (LOADED, "")
    assert run(script, tmp_path, **other) == (LOADED, "")
    (script.parent / "neighbour.py").write_text("SIZE = 3\n")
    assert run(script, tmp_path) == (COMPILED, "")


def test_of_several_processes_one_compiles(script, tmp_path):
    at = str(time.time() + 2)
    processes = [start(script, tmp_path, START=at) for _ in range(4)]
    lines = [process.communicate(timeout=100)[0].split(maxsplit=2) for process in processes]
    assert [sum(int(line[column]) for line in lines) for column in (0, 1)] == [1, 1]
    assert {line[2] for line in lines} == {"[0.0, 2.0, 4.0]\n"}


def test_what_was_compiled_between_the_question_and_the_lock_is_taken(script, tmp_path):
    asked = tmp_path / "asked"
    late = start(script, tmp_path, HELD_UP=str(asked))
    while not asked.exists():
        assert late.poll() is None
        time.sleep(0.01)
    assert run(script, tmp_path) == (COMPILED, "")
    while late.poll() is None:
        asked.unlink(missing_ok=True)  # for each function once
        time.sleep(0.01)
    out, said = late.communicate()
    assert out == LOADED and said.count("\n") == said.count("compiling for this processor")  # it waits, and may say so


class Evil:
    def __reduce__(self):
        return os.abort, ()


def test_damaged_code_is_compiled_again_with_one_warning(script, tmp_path):
    run(script, tmp_path)
    one, other = (path for path in (tmp_path / "psgd").iterdir() if path.suffix != ".lock")
    one.write_bytes(one.read_bytes()[:-100])
    other.write_bytes(pickle.dumps(Evil()))
    out, err = run(script, tmp_path)
    assert out == COMPILED
    warning = (
        rf"psgd: warning: compiling again, since the cached code cannot be used: {tmp_path}/psgd/script\.\w+-\w+: "
        r"it is damaged\n"
    )
    assert re.fullmatch(warning, err)
    assert run(script, tmp_path) == (LOADED, "")


@pytest.mark.parametrize("how", ["no folder", "full", "full later"])
def test_where_code_cannot_be_kept_it_is_compiled_with_one_warning(script, tmp_path, how):
    folder, limit = tmp_path / "cache", {}
    if how == "no folder":
        folder.touch()
    else:
        limit = {"LIMIT": "0" if how == "full" else "5000"}
    out, err = run(script, folder, **limit)
    assert out == COMPILED
    assert err.count("\n") == 1 and str(folder) in err and err.startswith("psgd: warning: ")


def test_folders(monkeypatch, tmp_path):
    def no_home():
        raise RuntimeError("no home")

    beside = Path(code_cache.__file__).parents[1] / "__pycache__" / "compiled"
    monkeypatch.setattr(code_cache.numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert code_cache.folders() == [beside, tmp_path / "psgd" / "compiled"]
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert code_cache.folders() == [beside, Path.home() / ".cache" / "psgd" / "compiled"]
    monkeypatch.setattr(Path, "home", no_home)
    assert code_cache.folders() == [beside]
    monkeypatch.setattr(code_cache.numba.config, "CACHE_DIR", str(tmp_path))
    assert code_cache.folders() == [tmp_path / "psgd"]
