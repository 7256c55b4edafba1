"""k-means and the heat equation: right by independent solutions, and alike on psgd's collectives and on MPI's."""

import json
import runpy
import sys
from argparse import Namespace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
KMEANS, HEAT = str(EXAMPLES / "kmeans.py"), str(EXAMPLES / "heat.py")
COMMS = ("psgd", "mpi4py")

# One start for many runs, each in a namespace of its own; rank 0 tells what every rank printed and how it ended.
DRIVER = """
import contextlib, io, json, runpy, sys
from mpi4py import MPI
told = []
for argv in json.loads({runs!r}):
    sys.argv, code = argv, 0
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            runpy.run_path(argv[0], run_name="__main__")
        except SystemExit as exit:
            code = exit.code
    told.append(MPI.COMM_WORLD.gather([out.getvalue(), err.getvalue(), code]))
if MPI.COMM_WORLD.rank == 0:
    print(json.dumps(told), flush=True)
"""


def drive(job, n, runs):
    """For each run, each rank's [stdout, stderr, exit code]."""
    return json.loads(job(n, DRIVER.format(runs=json.dumps(runs)), timeout=60, check=True).stdout)


def quiet(told):
    """What rank 0 printed, once it is clear that nobody else said anything."""
    first, *others = told
    assert first[1:] == ["", 0]
    assert others == [["", "", 0]] * len(others)
    return first[0]


def numbers(text):
    return {" ".join(words): float(value) for *words, value in map(str.split, text.splitlines())}


class Alone:
    """A communicator of one rank, without MPI."""

    rank, size, empty = 0, 1, staticmethod(np.empty)

    @staticmethod
    def Allreduce(send, recv):
        recv[:] = send

    Allgather = Allreduce

    @staticmethod
    def Bcast(buf, root):
        assert root == 0


@pytest.fixture(scope="module")
def kmeans():
    return Namespace(**runpy.run_path(KMEANS))


def cloud(n=5003, seed=3):
    """Overlapping blobs, so that Lloyd's algorithm has something to do; more points than a block of the program."""
    rng = np.random.default_rng(seed)
    return 2.5 * rng.normal(size=(6, 3))[rng.integers(6, size=n)] + rng.normal(size=(n, 3))


def lloyd(points, centres, tolerance):
    """The textbook's, with all distances in memory at once."""
    centres, iterations, moved = centres.copy(), 0, np.inf
    while moved > tolerance:
        nearest = ((points[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
        following = np.array(
            [points[nearest == j].mean(axis=0) if (nearest == j).any() else c for j, c in enumerate(centres)]
        )
        moved, centres = np.sqrt(((following - centres) ** 2).sum(axis=1)).max(), following
        iterations += 1
    return iterations, ((points[:, None] - centres) ** 2).sum(axis=2).min(axis=1).sum(), centres


def plate(rows, columns):
    """What Jacobi converges to for the edge "sine": the five-point equations' own solution, and the continuous one."""
    h = 1 / (columns + 1)
    i, j = np.arange(1, columns + 1), np.arange(1, rows + 1)[:, None]
    mu = np.arccosh(2 - np.cos(np.pi * h))
    discrete = np.sin(np.pi * h * i) * np.sinh(mu * j) / np.sinh(mu * (rows + 1))
    return discrete, np.sin(np.pi * h * i) * np.sinh(np.pi * h * j) / np.sinh(np.pi * h * (rows + 1))


@pytest.mark.job
@pytest.mark.parametrize("n", [1, 2, 3])
def test_same_numbers_on_both_communicators_and_the_right_ones(job, kmeans, tmp_path, n):
    points = cloud()
    np.save(tmp_path / "points.npy", points)
    runs = [
        [KMEANS, "--data", str(tmp_path / "points.npy"), "--clusters", "7", "--tolerance", "1e-9"],
        [KMEANS, "--points", "10007", "--dimensions", "3", "--clusters", "5", "--seed", "4"],
        [HEAT, "--rows", "17", "--columns", "11", "--tolerance", "1e-14", "--every", "7"],
        [HEAT, "--rows", "13", "--columns", "13", "--tolerance", "1e-13", "--edge", "one"],
    ]
    told = [quiet(ranks) for ranks in drive(job, n, [[*run, "--comm", comm] for run in runs for comm in COMMS])]
    assert told[::2] == told[1::2]
    file, blobs, sine, one = map(numbers, told[::2])

    options = Namespace(clusters=7, seed=0)
    iterations, inertia, centres = lloyd(points, kmeans.first_centres(Alone, points, options), 1e-9)
    assert iterations > 5
    checksum = sum((place + 1) * value for place, value in enumerate(centres.ravel()))
    assert file == pytest.approx({"iterations": iterations, "inertia": inertia, "centre checksum": checksum}, rel=2e-9)

    options = Namespace(clusters=5, seed=4, dimensions=3)
    points = kmeans.blobs(range(10007), options)
    iterations, inertia, _ = lloyd(points, kmeans.first_centres(Alone, points, options), 1e-6)
    assert [blobs["iterations"], blobs["inertia"]] == pytest.approx([iterations, inertia], rel=2e-9)

    discrete, continuous = plate(17, 11)
    assert sine["iterations"] % 7 == 0
    assert sine["residual"] <= 1e-14
    assert sine["centre temperature"] == pytest.approx(discrete[8, 5], rel=1e-9)
    assert sine["largest error"] == pytest.approx(np.abs(discrete - continuous).max(), rel=1e-8)
    finer, its_limit = plate(35, 23)  # the same plate with half the spacing: the error is of second order
    assert sine["largest error"] / np.abs(finer - its_limit).max() == pytest.approx(4, rel=0.05)
    # Four plates with one hot edge each, turned, add up to one that is at 1 everywhere.
    assert one["centre temperature"] == pytest.approx(0.25, abs=1e-9)
    assert "largest error" not in one


def test_blobs_are_one_data_set_for_any_ranges(kmeans):
    options = Namespace(seed=5, clusters=4, dimensions=3)
    whole = kmeans.blobs(range(10007), options)
    assert len(np.unique(whole, axis=0)) == 10007
    for bounds in ([0, 1, 4096, 4097, 10007], [0, 4095, 8193, 8193, 10007]):
        parts = [kmeans.blobs(range(*ends), options) for ends in pairwise(bounds)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_first_centres_find_blobs_far_apart(kmeans):
    middles = 1e4 * np.random.default_rng(0).normal(size=(12, 3))
    points = np.random.default_rng(1).normal(size=(12, 400, 3)) + middles[:, None]
    points = points.reshape(-1, 3)
    for seed in range(5):
        centres = kmeans.first_centres(Alone, points, Namespace(clusters=12, seed=seed))
        rows = [int((points == centre).all(axis=1).nonzero()[0][0]) for centre in centres]
        assert sorted(row // 400 for row in rows) == list(range(12))


def test_draw_never_takes_what_has_no_weight(kmeans):
    weights = np.array([0, 1, 0, 2, 0.0])
    assert [kmeans.draw(weights, target) for target in (0, 0.9, 1, 2.9, 3, 4)] == [1, 1, 3, 3, 3, 3]


@pytest.mark.parametrize("far", [0, 1e7])
def test_lloyd_keeps_the_centre_of_an_empty_cluster(kmeans, far):
    points, lonely = cloud(999) + far, np.array([500.0, 600.0, 700.0]) + far
    start = np.array([points[0], points[1], lonely, points[2]])
    centres = start.copy()
    options = Namespace(comm="mpi4py", tolerance=1e-6, iterations=300)
    iterations, inertia, at_rest = kmeans.lloyd(Alone, points, centres, options)
    expected = lloyd(points, start, 1e-6)
    assert at_rest
    assert (iterations, inertia) == (expected[0], pytest.approx(expected[1], rel=1e-9))
    np.testing.assert_array_equal(centres[2], lonely)
    np.testing.assert_allclose(centres, expected[2], rtol=1e-12)


@pytest.mark.job
def test_wrong_arguments_and_limits(job, tmp_path):
    np.save(tmp_path / "cube.npy", np.zeros((2, 2, 2)))
    np.save(tmp_path / "nan.npy", np.array([[1.0], [np.nan], [3.0]]))
    np.save(tmp_path / "twins.npy", np.array([[1, 2], [3, 4], [1, 2], [3, 4], [3, 4]]))
    (tmp_path / "text.npy").write_text("no array")
    few = [KMEANS, "--points", "2", "--clusters", "2"]
    refused = [
        ([KMEANS, "--points", "x"], "kmeans.py: argument --points: invalid int value: 'x'"),
        ([KMEANS, "--tolerance", "nan"], "kmeans.py: argument --tolerance: expected at least 0, got nan"),
        ([KMEANS, "--clusters", "0"], "kmeans.py: argument --clusters: expected at least 1, got 0"),
        ([*few, "--clusters", "3"], "expected at most 2, the number of distinct points, got 3"),
        (
            [KMEANS, "--data", str(tmp_path / "none.npy")],
            f"--data: {tmp_path / 'none.npy'}: No such file or directory\n",
        ),
        ([KMEANS, "--data", str(tmp_path / "text.npy")], "text.npy: "),
        ([KMEANS, "--data", str(tmp_path / "cube.npy")], "expected one 2-D array of real numbers"),
        ([KMEANS, "--data", str(tmp_path / "nan.npy"), "--clusters", "1"], "NaN, infinite or too large"),
        ([KMEANS, "--data", str(tmp_path / "nan.npy"), "--clusters", "3"], "NaN, infinite or too large"),
        ([KMEANS, "--data", str(tmp_path / "twins.npy"), "--clusters", "3"], "expected at most 2, the number"),
        ([HEAT, "--rows", "2"], "heat.py: argument --rows: expected at least 3, one for each rank, got 2"),
        ([HEAT, "--every", "0"], "heat.py: argument --every: expected at least 1, got 0"),
        ([HEAT, "--edge", "cold"], "heat.py: argument --edge: invalid choice"),
        ([HEAT, "--plot", str(tmp_path / "none" / "a.png")], "a folder that exists"),
        ([HEAT, "more"], "heat.py: unrecognized arguments: more"),
    ]
    fine = [few, [KMEANS, "--data", str(tmp_path / "twins.npy"), "--clusters", "2"]]
    limited = [[KMEANS, "--iterations", "1", "--points", "999"], [HEAT, "--rows", "3", "--iterations", "5"]]
    told = drive(job, 3, [*(run for run, _ in refused), *fine, *limited])
    for (run, message), ranks in zip(refused, told, strict=False):
        assert [[out, code] for out, _, code in ranks] == [["", 2]] * 3, run
        assert [len(err.splitlines()) for _, err, _ in ranks] == [1, 0, 0], run
        assert message in ranks[0][1]
    *good, kmeans, heat = map(quiet, told[len(refused) :])
    assert [numbers(text)["inertia"] for text in good] == [0, 0]  # the first with a rank that has no points
    assert "iterations       1 (limit reached, not converged)\n" in kmeans
    assert "iterations          5 (the limit)\n" in heat


@pytest.mark.one_mpi
@pytest.mark.job
def test_started_as_their_first_lines_say(job, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "heat.png"
    heat = [sys.executable, HEAT, "--rows", "5", "--columns", "5"]
    assert "largest error" in job(None, heat, check=True).stdout
    job(2, [*heat, "--plot", str(picture)], check=True, env={"MPLCONFIGDIR": str(tmp_path)})
    assert picture.read_bytes()[:4] == b"\x89PNG"
    result = job(2, [sys.executable, KMEANS, "--points", "none"])
    assert result.returncode == 2
    assert result.stderr.count("kmeans.py: argument --points: invalid int value: 'none'") == 1


@pytest.mark.parametrize("path", [KMEANS, HEAT])
def test_help_starts_no_mpi(monkeypatch, capsys, path):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setattr(sys, "argv", [path, "--help"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(path, run_name="__main__")
    assert left.value.code == 0
    assert "--comm" in capsys.readouterr().out
