"""`--mesh` with a PyTorch module of a user's file, on real ranks, against the same runs with the whole module."""

import numpy as np
import pytest
from mpi4py import MPI

from psgd import training
from psgd.config import TrainConfig
from psgd.kernels.errors import AgreedUsageError

torch = pytest.importorskip("torch")

NET = """
import torch
from torch import nn


def mlp():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 24), nn.ReLU(inplace=True), nn.Linear(24, 20), nn.Tanh(), nn.Linear(20, 16),
        nn.Linear(16, 10),
    )


def described():
    with torch.device("meta"):
        return mlp()


def double():
    return mlp().double(), nn.functional.cross_entropy


def norms():
    frozen = nn.Linear(24, 24)
    frozen.weight.requires_grad = False
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 24), nn.BatchNorm1d(24), frozen, nn.ReLU(), nn.Linear(24, 10), nn.BatchNorm1d(10)
    )


class Rows(nn.Module):
    def forward(self, x):
        return x.reshape(-1, 8, 8)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = Rows()
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.scores = nn.Linear(8, 10)

    def forward(self, x):
        return self.scores(self.block(self.rows(x)).mean(1))


def dropping():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 30), nn.Dropout(0.5), nn.Linear(30, 10))


def wrapped():
    import psgd.torch

    return psgd.torch.wrap(mlp())


def stateless():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Softmax(1))
"""
COMMON = {"dataset": "digits", "strategy": "allreduce", "epochs": 1, "batch_size": 60, "lr": 0.1, "eval_every": 0.5}


def file(comm, folder):
    """The user's file, once it is there."""
    if comm.rank == 0:
        (folder / "net.py").write_text(NET)
    comm.Barrier()
    return folder / "net.py"


def run(comm, path, name, function, **options):
    """Trains and returns the result and the weights by name, both on rank 0; None elsewhere."""
    saved = path.parent / f"{name}.npz"
    result = training.run(TrainConfig(model=f"{path}:{function}", save=saved, **COMMON | options), comm)
    if comm.rank:
        return None, None
    with np.load(saved) as found:
        return result, dict(found)


def whole(comm, path, copies, function, **options):
    """The same without a mesh, on so many ranks; on rank 0, as `run`."""
    few = comm.Split(0 if comm.rank < copies else MPI.UNDEFINED, comm.rank)
    if few == MPI.COMM_NULL:
        return None, None
    found = run(few, path, "whole", function, **options)
    few.Free()
    return found


def check(one, other, exactly):
    """Names in the same order, with the same bits or nearly."""
    assert list(one) == list(other)
    for name in one:
        assert one[name].dtype == other[name].dtype and one[name].shape == other[name].shape, name
        if exactly:
            assert np.array_equal(one[name], other[name]), name
        else:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    ("mesh", "function", "options", "exactly"),
    [
        ("pipe=2,data=2", "mlp", {"microbatches": 1, "optimizer": "momentum", "cut": "3"}, True),
        ("pipe=2,data=2", "norms", {"microbatches": 1, "cut": "3"}, True),
        ("pipe=4", "mlp", {"pipe_schedule": "gpipe", "cut": "2,4,6"}, False),
        ("pipe=2,tensor=2", "double", {"optimizer": "adam", "lr": 0.01, "microbatches": 3}, False),
        ("tensor=2,data=2", "Reader", {"clip_norm": 1.0, "lr": 0.5}, False),
    ],
)
def test_a_module_in_pieces_learns_what_a_whole_one_learns(comm, tmp_path, mesh, function, options, exactly):
    path = file(comm, tmp_path)
    result, weights = run(comm, path, "cut", function, mesh=mesh, **options)
    alone = {name: value for name, value in options.items() if name not in ("microbatches", "cut", "pipe_schedule")}
    expected, wanted = whole(comm, path, 2 if "data=2" in mesh else 1, function, **alone)
    if comm.rank == 0:
        check(weights, wanted, exactly)
        assert result["samples"] == expected["samples"] and result["test_accuracy"] == expected["test_accuracy"] > 0.3
        assert result["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-5)
        assert result["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-5)
        assert result["test_f1"] == pytest.approx(expected["test_f1"])
        assert (result["bubble"] is None) == ("pipe" not in mesh)


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    ("before", "after", "function"),
    [
        ("pipe=2,data=2", None, "mlp"),
        (None, "pipe=2,tensor=2", "mlp"),
        ("pipe=2,data=2", "pipe=2,data=2", "dropping"),
        ("pipe=2,data=2", "pipe=2,data=2", "without flushes"),
    ],
)
def test_a_run_is_resumed_and_goes_on_as_if_nothing_had_been(comm, tmp_path, before, after, function):
    path, copies = file(comm, tmp_path), 2 if before else 1
    options = {"optimizer": "momentum", "checkpoint_dir": tmp_path / "saved", "checkpoint_every": 7}
    uninterrupted = {"optimizer": "momentum"}
    if function == "without flushes":  # of which each checkpoint drains the pipeline
        function, options["pipe_schedule"], options["lr"] = "norms", "pipedream-2bw", 0.03
        uninterrupted = options | {"checkpoint_dir": tmp_path / "all"}

    def part(name, mesh, **more):
        if mesh is None:
            return whole(comm, path, copies, function, **more)
        return run(comm, path, name, function, mesh=mesh, cut="3", **more)

    part("first", before, **options)
    comm.Barrier()
    found, weights = part("second", after, **options | {"epochs": 2, "resume": True})
    comm.Barrier()
    _, wanted = part("all", before, **uninterrupted, epochs=2)
    if comm.rank == 0:
        check(weights, wanted, before == after)
        assert found["samples"] == 2 * found["train_samples"]


@pytest.mark.ranks(2)
def test_what_is_computed_twice_has_the_same_bits_and_torch_reads_what_is_saved(comm, tmp_path):
    path, found = file(comm, tmp_path), {}
    options = {"mesh": "pipe=2", "cut": "3", "microbatches": 2}
    for recompute in (None, "all", "2"):
        _, found[recompute] = run(comm, path, "cut", "dropping" if recompute == "all" else "norms", **options)
        if recompute:
            function = "dropping" if recompute == "all" else "norms"
            saved = tmp_path / "cut.pt"
            training.run(
                TrainConfig(model=f"{path}:{function}", save=saved, recompute=recompute, **COMMON | options), comm
            )
            if comm.rank == 0:
                state = torch.load(saved)
                assert list(state) == list(found[recompute])
                assert all(np.array_equal(state[name].numpy(), value) for name, value in found[recompute].items())


@pytest.mark.ranks(2)
def test_a_module_on_the_meta_device_is_nowhere_whole(comm, tmp_path):
    path, values = file(comm, tmp_path), {}
    for cut in ("2", "4"):
        result, values[cut] = run(comm, path, "cut", "described", mesh="pipe=2", microbatches=1, cut=cut)
    if comm.rank == 0:
        check(values["2"], values["4"], exactly=True)
        assert result["test_accuracy"] > 0.3


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("Reader", {"mesh": "pipe=2"}, r"expected a torch.nn.Sequential with layers, got Reader"),
        ("stateless", {"mesh": "pipe=2", "cut": "2"}, "expected trainable parameters on each rank"),
        ("stateless", {"mesh": "tensor=2"}, "got nothing to cut"),
        ("mlp", {"mesh": "pipe=2", "cut": "7"}, "--cut 7: expected rising layers from 1 to 6, the model has 7"),
        ("wrapped", {"mesh": "pipe=2"}, "not wrapped"),
    ],
)
def test_what_cannot_be_cut_is_refused_on_all_ranks(comm, tmp_path, function, options, message):
    with pytest.raises(AgreedUsageError, match=message):
        run(comm, file(comm, tmp_path), "cut", function, **options)
