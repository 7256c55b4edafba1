"""The picture is there, of a sensible size, with a line for each contender; what cannot be drawn is refused early."""

import struct
import sys

import pytest

from psgd.kernels.errors import UsageError
from psgd.launch.bench.collective import picture, table
from psgd.launch.bench.problem import BenchOptions


def rows(names, ranks=2):
    sizes = [4**k for k in range(1, 14)]
    return [
        table.Row(n, ranks, 5, "An MPI 1.2", {name: (1 + i) * (1e-6 + n / 1e10) for i, name in enumerate(names)}, {})
        for n in sizes
    ]


ALL = (*table.OURS, table.MPI_NAME, table.MPI_IN_PLACE, table.GLOO)


def test_png(tmp_path):
    pytest.importorskip("matplotlib")
    target = tmp_path / "a.png"
    picture.draw(rows(ALL), BenchOptions("allreduce"), target)
    data = target.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 20_000
    assert struct.unpack(">II", data[16:24]) == (1200, 750)


def test_what_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    target = tmp_path / "a.svg"
    for collective, names in (("bcast", ("psgd", "MPI")), ("allreduce", ALL)):
        import matplotlib

        with matplotlib.rc_context({"svg.fonttype": "none"}):
            picture.draw(rows(names, 5), BenchOptions(collective, op="max"), target)
        text = target.read_text()
        assert [name for name in ALL if f">{name}<" in text] == list(names)
        assert "5 ranks, An MPI 1.2, 20" in text
        assert ("float32, max" in text) == (collective == "allreduce")


def test_one_rank_has_no_bandwidth(tmp_path):
    pytest.importorskip("matplotlib")
    picture.draw(rows(ALL, 1), BenchOptions("allreduce"), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_not_written(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "a.png").mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        picture.draw(rows(ALL), BenchOptions("bcast"), tmp_path / "a.png")


def test_matplotlib_is_not_imported_before_it_draws():
    code = "import sys, psgd.launch.bench.collective.picture; sys.exit('matplotlib' in sys.modules)"
    import subprocess

    from psgd.launch.bench.peers import processes

    done = subprocess.run([sys.executable, "-c", code], env=processes.environment(), timeout=60, check=False)
    assert done.returncode == 0
