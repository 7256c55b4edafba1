"""MPI in jobs of its own, one for each setting: the fastest for each size, and what failed."""

import json

import pytest

from psgd.launch.bench.collective import mpi_best
from psgd.launch.bench.collective.mpi_settings import DEFAULT, Setting
from psgd.launch.bench.problem import BenchOptions


@pytest.mark.job
def test_measures_mpi_alone_and_tells_what_failed(monkeypatch):
    broken = Setting("broken", {"PYTHONHOME": "/nowhere"})
    monkeypatch.setattr(mpi_best, "settings", lambda vendor, collective: [DEFAULT, broken])
    best, failed = mpi_best.search(BenchOptions("reducescatter", repeats=2), [4096, 65536], 2, "")
    assert set(best) == {4096, 65536}
    assert all(name == "default" and seconds > 0 for name, seconds in best.values())
    (line,) = failed
    assert line.startswith("MPI's setting broken failed: ")


def test_the_fastest_setting_of_each_size(monkeypatch):
    times = {"a": {4: 3.0, 8: 1.0}, "b": {4: 2.0, 8: 5.0}}
    monkeypatch.setattr(mpi_best, "settings", lambda vendor, collective: [Setting("a"), Setting("b")])
    monkeypatch.setattr(mpi_best, "measure", lambda *arguments: times[arguments[-1].name])
    best, failed = mpi_best.search(BenchOptions("bcast"), [4, 8], 2, "")
    assert (best, failed) == ({4: ("b", 2.0), 8: ("a", 1.0)}, [])
    monkeypatch.setenv(mpi_best.VARIABLE, json.dumps(best))
    assert mpi_best.heard() == best
    monkeypatch.delenv(mpi_best.VARIABLE)
    assert mpi_best.heard() == {}
