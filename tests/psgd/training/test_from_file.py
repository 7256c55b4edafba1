"""`--model FILE.py:make` on real ranks: a user's model is trained as the same built-in one is, under every strategy."""

import contextlib
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from psgd import training
from psgd.config import configure
from psgd.data import load
from psgd.data.batches import Batches
from psgd.data.normalization import validate
from psgd.data.sampler import Sampler
from psgd.kernels.errors import AgreedContractError, AgreedUsageError
from psgd.runtime import new_files
from psgd.training.from_file import DataDescription, make_model
from psgd.user.reference import Reference

OWN = """
from psgd.nn.model import Model
from psgd.nn.models import mlp

def make(data):
    assert (data.sample_shape, data.classes, data.samples) == ((1, 8, 8), 10, 1497)
    return Model(mlp.layers(data.sample_shape, data.classes, hidden=16), data.sample_shape)
"""

TORCH = """
import torch
from torch import nn

def start(module, data):  # where the built-in model starts with seed 0
    from psgd.nn.models import build
    model = build("mlp", data.sample_shape, data.classes, hidden=16)
    views = model.layout.for_torch(model.init(0))
    for parameter, name in zip(module.parameters(), views, strict=True):
        parameter.data.copy_(torch.from_numpy(views[name]))
    return module

def make(data):
    return start(nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)), data)

def with_loss(data):
    return make(data), nn.CrossEntropyLoss()

def normalized():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 10))
"""


def write(comm, folder, **files):
    """Writes files on rank 0; all see them then."""
    if comm.rank == 0:
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)
    comm.Barrier()


def weights(comm, folder, config):
    """Trains; on rank 0 what `--save` has written, elsewhere None."""
    path, before = folder / "weights.npz", [*new_files.lost()]
    result = training.run(replace(config, save=path), comm)
    assert new_files.lost() == before
    if comm.rank:
        return None
    with np.load(path, allow_pickle=False) as found:
        arrays = {name: found[name] for name in found.files}
    assert 0 < result["test_accuracy"] < 1 and not result["diverged"]
    return arrays


# Workers of these do the same in every run; a single worker behind a server does with any strategy.
REPEATABLE = [
    (3, "sync", {"accumulate": 2}),
    (3, "sync", {"compress": "topk", "density": 0.1}),
    (3, "allreduce", {"optimizer": "momentum", "warmup_epochs": 0.5, "scale_lr": True}),
    (3, "averaging", {"period": 3}),
    (2, "easgd", {"period": 2, "easgd_order": "sync"}),
    (2, "ssp", {"clip_norm": 1.0}),
    (2, "async", {"optimizer": "adam", "lr": 0.01}),
    (1, "sync", {}),
]


@pytest.mark.ranks(3)
@pytest.mark.parametrize(("ranks", "strategy", "options"), REPEATABLE)
@pytest.mark.parametrize("library", ["own", "torch"])
def test_it_is_trained_as_the_built_in_model_is(comm, tmp_path, ranks, strategy, options, library):
    if library == "torch":
        pytest.importorskip("torch")
    from mpi4py import MPI

    write(comm, tmp_path, net=OWN if library == "own" else TORCH)
    some = comm.Split(0 if comm.rank < ranks else MPI.UNDEFINED)
    if some == MPI.COMM_NULL:
        return
    common = {"strategy": strategy, "epochs": 2, "batch_size": 20, "eval_every": 0.5, "hidden": 16, **options}
    wanted = weights(some, tmp_path, configure(model="mlp", **common))
    found = weights(some, tmp_path, configure(model=f"{tmp_path}/net.py:make", **common))
    if comm.rank:
        return
    if library == "own":
        assert list(found) == list(wanted)
        for name in wanted:
            np.testing.assert_array_equal(found[name], wanted[name])
    else:
        assert list(found) == ["1.weight", "1.bias", "3.weight", "3.bias"]
        for ours, theirs in zip(found.values(), wanted.values(), strict=True):
            np.testing.assert_allclose(ours.T, theirs, rtol=2e-4, atol=2e-5)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("strategy", ["async", "softsync", "ssp", "hogwild", "decentralized", "easgd"])
def test_it_learns_with_strategies_whose_order_is_not_fixed(comm, tmp_path, strategy):
    pytest.importorskip("torch")
    write(comm, tmp_path, net=TORCH)
    config = configure(model=f"{tmp_path}/net.py:with_loss", strategy=strategy, epochs=6, batch_size=10, lr=0.1)
    result = training.run(config, comm)
    assert result is None or result["test_accuracy"] > 0.8, result


@pytest.mark.ranks(3)
@pytest.mark.parametrize("strategy", ["sync", "allreduce"])
def test_a_module_is_trained_as_a_sequential_loop_trains_it(comm, tmp_path, strategy):
    torch = pytest.importorskip("torch")
    write(comm, tmp_path, net=TORCH)
    options = {"strategy": strategy, "epochs": 2, "batch_size": 25, "lr": 0.05, "optimizer": "momentum"}
    found = weights(comm, tmp_path, configure(model=f"{tmp_path}/net.py:make", **options))
    if comm.rank:
        return
    workers = 2 if strategy == "sync" else 3
    digits = load("digits")
    batches = Batches(digits.train, validate(digits), 25 * workers)
    names = {}
    exec(TORCH, names)
    module = names["make"](type("Data", (), {"sample_shape": (1, 8, 8), "classes": 10}))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    parts = [Sampler(1497, workers, worker, 25, 0) for worker in range(workers)]
    for step in range(2 * parts[0].steps):
        rows = np.concatenate([part.batch(*divmod(step, part.steps)) for part in parts])
        x, y = batches.fetch(rows)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimizer.step()
    for name, tensor in module.state_dict().items():
        np.testing.assert_allclose(found[name], tensor.numpy(), rtol=2e-4, atol=2e-5)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("strategy", ["sync", "allreduce", "averaging"])
@pytest.mark.parametrize("every", [5, 24])
def test_a_resumed_run_ends_with_the_same_bits_with_batchnorm_and_dropout(comm, tmp_path, strategy, every):
    pytest.importorskip("torch")
    write(comm, tmp_path, net=TORCH)
    options = {"model": f"{tmp_path}/net.py:normalized", "strategy": strategy, "batch_size": 32, "lr": 0.05}
    whole = weights(comm, tmp_path, configure(epochs=3, **options))
    options |= {"checkpoint_dir": tmp_path / "runs", "checkpoint_every": every}
    weights(comm, tmp_path, configure(epochs=2, **options))
    resumed = weights(comm, tmp_path, configure(epochs=3, resume=True, **options))
    again = weights(comm, tmp_path, configure(epochs=3, resume=True, **options))  # of little or no training
    if comm.rank:
        return
    running = ["2.running_mean", "2.running_var", "2.num_batches_tracked"]
    assert [name for name in whole if name in running] == running
    for name in whole:
        np.testing.assert_array_equal(resumed[name], whole[name])
        np.testing.assert_array_equal(again[name], whole[name])


@pytest.mark.ranks(2)
def test_a_checkpoint_has_the_name_and_a_checksum_and_a_changed_file_is_one_line(comm, tmp_path):
    pytest.importorskip("torch")
    write(comm, tmp_path, net=TORCH)
    options = {"checkpoint_dir": tmp_path / "runs", "checkpoint_every": 10, "epochs": 1}
    training.run(configure(model=f"{tmp_path}/net.py:make", **options), comm)
    (tmp_path / "moved").mkdir(exist_ok=True)
    comm.Barrier()
    write(comm, tmp_path, **{"moved/net": TORCH})
    options |= {"resume": True, "epochs": 2}
    with contextlib.redirect_stderr(io.StringIO()) as said:
        training.run(configure(model=f"{tmp_path}/moved/net.py:make", **options), comm)
    assert "warning" not in said.getvalue()
    write(comm, tmp_path, **{"moved/net": TORCH + "# another\n"})
    with contextlib.redirect_stderr(io.StringIO()) as said:
        training.run(configure(model=f"{tmp_path}/moved/net.py:make", **options), comm)
    lines = [line for line in said.getvalue().splitlines() if "warning" in line]
    assert len(lines) == (comm.rank == 0), lines
    if comm.rank == 0:
        assert "moved/net.py:make: the file has changed since the checkpoint: its SHA-256 began with" in lines[0]
    with pytest.raises(
        AgreedUsageError, match=r"from a run with model 'net.py:make', but this run has 'net.py:with_loss'"
    ):
        training.run(configure(model=f"{tmp_path}/moved/net.py:with_loss", **options), comm)


DATA = """
import numpy as np
from psgd.data import load

def make_dataset():
    digits = load("digits")
    return (digits.train.x, digits.train.y), (digits.test.x, digits.test.y)

def drawn():
    return np.random.rand(60, 4).astype("float32"), np.arange(60) % 3

def unseeded():
    return np.random.default_rng().random((60, 4)), np.arange(60) % 3
"""


@pytest.mark.ranks(1, 3)
def test_a_dataset_of_a_function_is_that_of_the_same_files(comm, tmp_path):
    write(comm, tmp_path, data=DATA)
    wanted = weights(comm, tmp_path, configure(epochs=1))
    found = weights(comm, tmp_path, configure(epochs=1, dataset=f"{tmp_path}/data.py:make_dataset"))
    for name in wanted or ():
        np.testing.assert_array_equal(found[name], wanted[name])


@pytest.mark.ranks(3)
def test_random_data_must_be_that_of_the_seed(comm, tmp_path):
    write(comm, tmp_path, data=DATA)
    training.run(configure(dataset=f"{tmp_path}/data.py:drawn", epochs=1, model="softmax"), comm)
    with pytest.raises(AgreedContractError, match=r"checksum: .* on rank 1 .*that no seed fixes") as caught:
        training.run(configure(dataset=f"{tmp_path}/data.py:unseeded", epochs=1, model="softmax"), comm)
    assert len(set(comm.allgather(str(caught.value)))) == 1


WRONG = """
import sys
import numpy as np
from mpi4py import MPI
from psgd.nn.linear import Linear
from psgd.nn.model import Model

def nothing(): ...
def three(): return 1, 2, 3
def on_one():
    if MPI.COMM_WORLD.rank == 1:
        raise ValueError("only here")
    from psgd.nn.models import build
    return build("mlp", (1, 8, 8), 10)
def shape(): return Model([Linear(4)], (64,))
def few(data): return Model([__import__("psgd.nn.reshape").nn.reshape.Flatten(), Linear(4)], data.sample_shape)
def wide(data): return Model([__import__("psgd.nn.reshape").nn.reshape.Flatten(), Linear(10)], data.sample_shape, "f8")
def loss(data):
    return Model([__import__("psgd.nn.reshape").nn.reshape.Flatten(), Linear(10)], data.sample_shape), np.mean
"""

WRONG_TORCH = """
import torch
from torch import nn

def shape(): return nn.Linear(5, 10)
def few(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
def images(): return nn.Conv2d(1, 10, 8)
def frozen(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).requires_grad_(False)
def good(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
def loss(): return good(), 3
def vector(): return good(), nn.CrossEntropyLoss(reduction="none")
def number(): return good(), lambda output, y: 1.0
def lazy(): return nn.Sequential(nn.Flatten(1, 1), nn.LazyConv2d(4, 9))
def kept(): return good().append(Kept())
class Kept(nn.Module):
    def forward(self, x): return [x]
"""

REFUSED = {
    "nothing": r"expected a torch.nn.Module, .*, or .module, loss., got NoneType; does the function return it\?",
    "three": "expected .*, got a tuple of int, int, int",
    "on_one": r"raised ValueError: only here \(net.py, line 12\)",
    "shape": r"expected a model for samples of shape \(1, 8, 8\), got one for \(64,\)",
    "few": "expected a model with a score for each of 10 classes, got 4",
    "wide": "expected a float32 model, got float64",
    "loss": "expected no loss with a model of psgd.nn, which has its own, got one",
}

REFUSED_TORCH = {
    "shape": r"cannot be called with a batch of shape \(n, 1, 8, 8\) and its labels: RuntimeError: mat1",
    "few": r"expected a module that gives scores of shape \(n, 10\), .*it gave \(2, 4\)",
    "images": r"expected .* for samples of shape \(2, 1, 8, 8\) it gave \(2, 10, 1, 1\)",
    "kept": r"expected .* it gave list",
    "lazy": r"cannot be called with a batch of shape \(n, 1, 8, 8\) and its labels: RuntimeError: .*Kernel size",
    "frozen": "expected a module with trainable parameters, got none",
    "loss": r"expected a loss that can be called with \(output, labels\), got int",
    "vector": r"expected a loss that gives one number to differentiate, the batch's mean; got shape \(2,\)",
    "number": "expected a loss that gives one number .*; got float",
}


@pytest.mark.ranks(3)
@pytest.mark.parametrize("name", [*REFUSED, *(f"torch {name}" for name in REFUSED_TORCH)])
def test_what_cannot_be_is_one_error_on_all(comm, tmp_path, name):
    library, _, function = name.rpartition(" ")
    if library:
        pytest.importorskip("torch")
    write(comm, tmp_path, net=WRONG_TORCH if library else WRONG)
    message = (REFUSED_TORCH if library else REFUSED)[function]
    config = configure(model=f"{tmp_path}/net.py:{function}")
    where = r"rank 1 on \S+: " if function == "on_one" else ""
    with pytest.raises(AgreedUsageError, match=f"^{where}--model {tmp_path}/net.py:{function}: {message}") as caught:
        training.run(config, comm)
    assert len(set(comm.allgather(str(caught.value)))) == 1


@pytest.mark.ranks(3)
@pytest.mark.parametrize("what", ["contents of the file", "parameters"])
def test_another_file_on_one_rank_is_one_error_on_all(comm, tmp_path, what):
    mine = tmp_path / str(comm.rank)
    mine.mkdir()
    source = OWN if what == "parameters" else OWN + "\n# another" * (comm.rank == 2)
    if what == "parameters":
        source = source.replace("hidden=16", "hidden=16 + (MPI.COMM_WORLD.rank == 2)")
    Path(mine / "net.py").write_text("from mpi4py import MPI\n" + source)
    reference = Reference("--model", "net.py:make", mine / "net.py", "make")
    with pytest.raises(
        AgreedContractError, match=f"the same model, but the {what} differ on rank 0 on .* and rank 2 on"
    ) as caught:
        make_model(configure(), comm, reference, DataDescription((1, 8, 8), 10, 1497))
    assert len(set(comm.allgather(str(caught.value)))) == 1


@pytest.mark.ranks(3)
def test_a_recorded_run_is_repeated_bit_for_bit(comm, tmp_path):
    pytest.importorskip("torch")
    write(comm, tmp_path, net=TORCH)
    options = {"model": f"{tmp_path}/net.py:normalized", "strategy": "async", "epochs": 2, "lr": 0.05}
    first = weights(comm, tmp_path, configure(record=tmp_path / "order", **options))
    again = weights(comm, tmp_path, configure(replay=tmp_path / "order", **options))
    for name in first or ():
        np.testing.assert_array_equal(again[name], first[name])


@pytest.mark.ranks(3)
def test_targets_and_gradients_that_are_no_numbers(comm, tmp_path):
    pytest.importorskip("torch")
    write(comm, tmp_path, net=TORCH)
    options = {"model": f"{tmp_path}/net.py:make", "epochs": 20, "eval_every": 0.25, "target_accuracy": 0.8}
    result = training.run(configure(inject="nan:1@3", on_nan="skip", **options), comm)
    if comm.rank == 0:
        assert result["seconds_to_target"] is not None and result["test_accuracy"] >= 0.8
        assert result["samples"] < 10 * 1497
        assert result["workers_dropped"] == [0, 1] and not result["diverged"]
