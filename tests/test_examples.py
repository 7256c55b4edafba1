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
def test_a_pipeline_without_flushes_learns_as_one_with_them(job):
    arguments = ["--dataset", "digits", "--epochs", "6", "--seeds", "1", "--batch-size", "32"]
    result = job(2, [sys.executable, str(EXAMPLES / "pipedream_on_fashion.py"), *arguments], check=True)
    found = {line.split()[0]: float(line.split()[1]) for line in result.stdout.splitlines()[1:]}
    assert [*found] == ["1f1b", "pipedream", "2bw"], result.stdout
    assert min(found.values()) > 88, result.stdout


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


@pytest.mark.one_mpi
@pytest.mark.job
@pytest.mark.parametrize(("n", "strategy"), [(2, "allreduce"), (3, "async")])
def test_jax_logistic(job, n, strategy):
    pytest.importorskip("jax")
    result = job(n, [sys.executable, str(EXAMPLES / "jax_logistic.py"), strategy], check=True, timeout=60)
    said = re.search(rf"{strategy} on {n} ranks: ([\d.]+) of 300 digits are read correctly", result.stdout)
    assert float(said.group(1)) > 0.9, result.stdout


@pytest.mark.job
@pytest.mark.parametrize(("n", "strategy"), [(None, "sync"), (2, "hogwild")])
def test_matrix_factorization(job, n, strategy):
    """The factors explain held-out ratings far better than their mean, down to little more than the noise."""
    result = job(n, [sys.executable, str(EXAMPLES / "matrix_factorization.py"), strategy], check=True)
    said = re.search(rf"{strategy} on {n or 1} ranks?: RMSE ([\d.]+) .*noise ([\d.]+), the mean rating", result.stdout)
    rmse, noise = map(float, said.groups())
    assert noise < rmse < 1.2 * noise, result.stdout


@pytest.mark.job
@pytest.mark.parametrize(("n", "strategy"), [(2, "allreduce"), (3, "async")])
@pytest.mark.parametrize("example", ["torch_mlp.py", "torch_optimizer.py"])
def test_torch(job, example, n, strategy):
    pytest.importorskip("torch")
    result = job(n, [sys.executable, str(EXAMPLES / example), strategy], check=True)
    said = re.search(rf"{strategy} on {n} ranks: ([\d.]+) of the points", result.stdout)
    assert float(said.group(1)) > 0.93, result.stdout


@pytest.mark.job
@pytest.mark.parametrize("plot", ["picture.svg", None])
def test_strategies_on_fashion(job, tmp_path, plot):
    names = ["allreduce", "ssp"] if plot else ["hogwild"]
    flags = [f"--strategy={name}" for name in names] + ([f"--plot={tmp_path / plot}"] if plot else [])
    small = ["--dataset", "digits", "--samples", "1200", "--epochs", "4"]
    program = [sys.executable, str(EXAMPLES / "strategies_on_fashion.py")]
    result = job(None, [*program, *small, *flags], check=True, timeout=240)
    header, *rows = [line.split() for line in result.stdout.splitlines()]
    assert header == ["strategy", "seconds", "samples/s", "loss", "accuracy"]
    assert [row[0] for row in rows] == names
    assert all(float(row[4]) > 0.6 for row in rows), result.stdout
    if plot:
        text = (tmp_path / plot).read_text()
        assert text.startswith("<?xml") and all(f"<!-- {name} -->" in text for name in names)


@pytest.mark.job
def test_torch_resnet(job):
    pytest.importorskip("torch")
    result = job(2, [sys.executable, str(EXAMPLES / "torch_resnet.py")], check=True, timeout=300)
    said = re.search(r"allreduce on 2 ranks: ([\d.]+) of the test images", result.stdout)
    assert float(said.group(1)) > 0.8, result.stdout


@pytest.mark.job
def test_torch_resnet_without_a_loop(job):
    pytest.importorskip("torch")
    file = str(EXAMPLES / "torch_resnet.py")
    flags = [
        "--model",
        f"{file}:make",
        "--dataset",
        f"{file}:make_dataset",
        "--epochs",
        "2",
        "--json",
        "--workers",
        "1",
    ]
    command = [sys.executable, "-m", "psgd.launch", "train", *flags, "--servers", "0", "--eval-every", "0"]
    result = json.loads(job(None, command, check=True, timeout=300).stdout.splitlines()[-1])
    assert result["samples"] == 2 * 1280 and result["train_loss"] < 1.8, result  # guesses have log 10 = 2.3


@pytest.mark.job
@pytest.mark.parametrize("n", [4, 5])
def test_solver_with_server(job, n):
    """The surrogate is right about cases that the solver computes anew."""
    program = [sys.executable, str(EXAMPLES / "solver_with_server.py"), "--cases", "80"]
    result = job(n, program, check=True, timeout=240)
    assert {4: "1 rank solved 80 cases", 5: "2 ranks solved 80 cases"}[n] in result.stdout
    errors = re.search(r"its error is ([\d.]+), that of always answering the mean ([\d.]+)", result.stdout)
    assert float(errors.group(1)) < 0.5 * float(errors.group(2)), result.stdout


@pytest.mark.job
def test_the_solver_is_right_about_a_plate_of_one_material_and_the_same_on_any_number_of_ranks(job):
    code = f"""
import runpy
import numpy as np
from mpi4py import MPI
solver = runpy.run_path({str(EXAMPLES / "solver_with_server.py")!r})["effective_conductivity"]
every = []
for comm in (MPI.COMM_SELF, MPI.COMM_WORLD):
    assert abs(solver(comm, np.array([0.0, 0.2])) - 1) < 1e-9
    found = [solver(comm, np.array([s, 0.3])) for s in (-2.0, 2.0)]
    assert 0.3 < found[0] < 1 < found[1] < 3
    assert abs(found[0] * found[1] - 1) < 0.02, found  # Keller's duality: of a plate and its inverse it is the inverse
    every += MPI.COMM_WORLD.allgather(np.round(found, 9).tolist())
if MPI.COMM_WORLD.rank == 0:
    print(*every, sep="\\n")
"""
    lines = job(3, code, check=True, timeout=120).stdout.splitlines()
    assert len(set(lines)) == 1 and len(lines) == 6, lines


@pytest.mark.one_mpi
@pytest.mark.job
def test_two_lstm_has_the_same_bits_wherever_its_branches_are(job):
    outputs = {}
    for n in (None, 2, 3):
        result = job(n, [sys.executable, str(EXAMPLES / "two_lstm.py")], check=True, timeout=240)
        losses, told = result.stdout.splitlines()
        outputs[n or 1] = losses, told
    assert len({losses for losses, _ in outputs.values()}) == 1, outputs
    for n, (_, told) in outputs.items():
        share = re.fullmatch(rf"{n} ranks?: ([\d.]+) of the pairs are told apart", told).group(1)
        assert float(share) > 0.9, outputs


@pytest.mark.job
def test_two_lstm_is_pytorchs_program_with_a_shared_lstm(job):
    pytest.importorskip("torch")
    code = f"""
import runpy
import numpy as np
import torch
from mpi4py import MPI
names = runpy.run_path({str(EXAMPLES / "two_lstm.py")!r})
program = names["Program"](MPI.COMM_SELF, 5)
texts, labels = names["make_pairs"](5)
grads = {{}}
for stage in (program.encoder, program.classifier):
    grads[stage] = np.full(stage.layout.size, np.nan, np.float32)
    stage.bind(stage.init(3), grads[stage])
loss = program.gradient(texts, labels)
lstm, head = torch.nn.LSTM(256, 64, batch_first=True), torch.nn.Linear(128, 2)
ours = [part.layout.for_torch(part.init(3)) for part in (program.encoder, program.classifier)]
with torch.no_grad():
    lstm.bias_hh_l0.zero_()
    theirs = lstm.weight_ih_l0, lstm.weight_hh_l0, lstm.bias_ih_l0, head.weight, head.bias
    for parameter, values in zip(theirs, [*ours[0].values(), *ours[1].values()], strict=True):
        parameter.copy_(torch.tensor(values))
one_hot = torch.nn.functional.one_hot(torch.tensor(texts.astype(np.int64)), 256).float()
read = torch.cat([lstm(one_hot[branch])[1][0][0] for branch in (0, 1)], 1)
expected = torch.nn.functional.cross_entropy(head(read), torch.tensor(labels))
expected.backward()
assert abs(loss - expected.item()) < 1e-5
found = [values for stage in grads for values in stage.layout.for_torch(grads[stage]).values()]
for parameter, values in zip(theirs, found, strict=True):
    np.testing.assert_allclose(values, parameter.grad.numpy(), rtol=1e-4, atol=1e-5)
print("the same")
"""
    assert job(None, code, check=True, timeout=120).stdout == "the same\n"


@pytest.mark.one_mpi
@pytest.mark.job
def test_two_lstm_is_timed_beside_one_rank(job):
    flags = ["--pairs", "32", "--epochs", "1", "--compare", "3"]
    result = job(3, [sys.executable, str(EXAMPLES / "two_lstm.py"), *flags], check=True, timeout=120)
    form = r"a step: one rank ([\d.]+) ms, 3 ranks ([\d.]+) ms, ([\d.]+) times as fast"
    one, three, ratio = map(float, re.search(form, result.stdout).groups())
    assert one > 5 and three > 5 and ratio == pytest.approx(one / three, abs=0.01)


@pytest.mark.job
@pytest.mark.parametrize(
    ("example", "ranks", "message"),
    [
        ("two_lstm.py", 4, "two_lstm.py: expected 1, 2 or 3 ranks, got 4"),
        ("solver_with_server.py", 2, "solver_with_server.py: expected 4 to 35 ranks and 1 case or more"),
    ],
)
def test_other_numbers_of_ranks_are_refused_in_one_line(job, example, ranks, message):
    result = job(ranks, [sys.executable, str(EXAMPLES / example)])
    assert result.returncode == 2
    assert result.stderr.count(message) == 1 and "Traceback" not in result.stderr
