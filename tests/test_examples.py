"""Every program in examples/ runs as its first lines say."""

import json
import re
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.job
@pytest.mark.parametrize(
    ("n", "arguments"), [(None, []), (3, ["allreduce", "--compress", "topk"]), (5, ["async", "--servers", "2"])]
)
def test_own_loop(job, n, arguments):
    result = job(n, [sys.executable, str(EXAMPLES / "own_loop.py"), *arguments], check=True)
    distance = float(re.search(r"exact solution ([\d.]+)", result.stdout).group(1))
    assert distance < 0.02


@pytest.mark.job
def test_own_loop_ends_together(job):
    result = job(2, [sys.executable, str(EXAMPLES / "own_loop.py"), "--servers", "2"])
    assert result.returncode != 0
    assert "servers: expected 1 to 1 of 2 ranks" in result.stderr


@pytest.mark.one_mpi
@pytest.mark.job
def test_a_straggler_holds_up_those_who_wait_for_it_and_nobody_else(job):
    result = job(None, [sys.executable, str(EXAMPLES / "consistency.py"), "straggler"], check=True, timeout=120)
    rows = {name: float(seconds) for name, seconds in re.findall(r"(\w+) +([\d.]+) +\S+ +\S+\n", result.stdout)}
    rates = {name: float(rate) for name, rate in re.findall(r"(\w+) +[\d.]+ +(\S+) +\S+\n", result.stdout)}
    assert rows["sync"] > 2 * rows["async"] and rows["sync"] > 2 * rows["softsync"], result.stdout
    assert rates["ssp"] == pytest.approx(rates["sync"], rel=0.2), result.stdout


@pytest.mark.one_mpi
@pytest.mark.job
def test_a_rate_that_stale_gradients_do_not_stand_until_it_is_divided_by_their_staleness(job):
    """What `consistency.py scaled` shows for 16 workers and every S, here for 8 and S = 1."""
    accuracy = {}
    for scale in ("none", "inverse"):
        flags = f"--json --strategy async --workers 8 --epochs 8 --batch-size 16 --lr 0.7 --staleness-lr {scale}"
        options = [*flags.split(), "--eval-every", "0", "--inject", "compute:0.02"]
        result = job(None, [sys.executable, "-m", "psgd.launch", "train", *options], check=True)
        final = json.loads(result.stdout.splitlines()[-1])
        assert final["staleness"]["mean"] > 5
        accuracy[scale] = final["test_accuracy"]
    assert accuracy["none"] < 0.4 < 0.7 < accuracy["inverse"], accuracy


@pytest.mark.job
def test_rounds_of_easgd(job):
    result = job(4, [sys.executable, str(EXAMPLES / "easgd_orders.py"), "--mib", "0.1", "--rounds", "3"], check=True)
    rows = [line.split() for line in result.stdout.splitlines() if line[:1] in "24"]
    assert [row[0] for row in rows] == ["2", "4"], result.stdout
    assert all(float(row[column]) > 0 for row in rows for column in (1, 3, 5, 7))
    link = float(rows[0][2].strip("()")) / 2  # ms for the vector, once
    predicted = [[float(row[column].strip("()")) for column in (2, 4, 6)] for row in rows]
    for times, counts in zip(predicted, ([2, 1, 1], [4, 2, 1.5]), strict=True):
        assert times == pytest.approx([count * link for count in counts], abs=0.11 + 0.2 * link)


@pytest.mark.job
@pytest.mark.parametrize(("n", "strategy"), [(2, "allreduce"), (3, "async")])
@pytest.mark.parametrize("example", ["torch_mlp.py", "torch_optimizer.py"])
def test_torch(job, example, n, strategy):
    pytest.importorskip("torch")
    result = job(n, [sys.executable, str(EXAMPLES / example), strategy], check=True)
    said = re.search(rf"{strategy} on {n} ranks: ([\d.]+) of the points", result.stdout)
    assert float(said.group(1)) > 0.93, result.stdout
