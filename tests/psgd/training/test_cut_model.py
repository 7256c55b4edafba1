"""Runs of a model in pieces on real ranks, against the same runs with whole models."""

from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

from psgd import training
from psgd.config import TrainConfig
from psgd.kernels.errors import AgreedUsageError
from psgd.metrics.trace import chrome
from psgd.training.cut_model import cut

COMMON = {"model": "mlp", "hidden": 24, "epochs": 2, "batch_size": 30, "lr": 0.1, "eval_every": 0.5}


def toy(folder, samples=203, features=6, classes=3):
    """A separable problem as .npy files."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(classes, features)) * 2
    for part, n in (("train", samples), ("test", 90)):
        y = rng.permutation(np.arange(n) % classes)
        np.save(folder / f"y_{part}.npy", y)
        np.save(folder / f"x_{part}.npy", (centres[y] + rng.normal(size=(n, features))).astype(np.float32))


def made(comm, folder):
    """The problem's folder, once it is there."""
    if comm.rank == 0:
        toy(folder)
    comm.Barrier()
    return str(folder)


def run(comm, data, folder, name, **options):
    """Trains and returns the result and the weights by name, both on rank 0; None elsewhere."""
    path = folder / f"{name}.npz"
    result = training.run(TrainConfig(dataset=data, save=path, **COMMON | options), comm)
    if comm.rank:
        return None, None
    with np.load(path) as found:
        return result, dict(found)


def part(comm, ranks):
    """The first ranks, for a run of fewer."""
    return comm.Split(0 if comm.rank < ranks else MPI.UNDEFINED, comm.rank)


def same_weights(one, other):
    assert list(one) == list(other)
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("options", "tensor", "says"),
    [
        ({"mesh": "pipe=2,tensor=2"}, 2, "without tensor and --shard, got --mesh pipe=2,tensor=2"),
        ({"mesh": "pipe=2,data=2", "shard": 1}, 1, "without tensor and --shard, got --shard 1"),
    ],
)
def test_stages_that_are_not_whole_take_no_steps_apart_on_gpus(options, tensor, says):
    config = TrainConfig(device="cuda", pipe_schedule="pipedream", strategy="allreduce", **options)
    mesh = SimpleNamespace(sizes={"pipe": 2, "tensor": tensor, "data": 1})
    with pytest.raises(AgreedUsageError, match=f"--device cuda: with --pipe-schedule pipedream .*{says}"):
        cut(SimpleNamespace(model=None, samples=60), config, mesh)


MESHES = ["pipe=2,data=2", "tensor=2,data=2", "pipe=2,tensor=2", "pipe=4", "tensor=4", "data=4"]


@pytest.mark.ranks(4)
@pytest.mark.parametrize(("schedule", "kinds"), [("1f1b", "FB"), ("zero-bubble", "FXW"), ("pipedream", "FBU")])
def test_a_trace_has_the_passes_of_all_ranks(comm, tmp_path, schedule, kinds):
    data = made(comm, tmp_path)
    options = {"strategy": "allreduce", "model": "mlp", "pipe_schedule": schedule, "trace": tmp_path / "t.json"}
    run(comm, data, tmp_path, "cut", mesh="pipe=2,data=2", microbatches=4, **options)
    if comm.rank == 0:
        found = chrome.read_passes(tmp_path / "t.json")
        named = [f"rank {rank}: worker {rank // 2} pipe={rank % 2}" for rank in range(4)]
        assert sorted(name.partition(" on ")[0] for name, _ in found) == named
        for _, passes in found:
            assert {each.kind for each in passes} == set(kinds)
            # Without flushes they are numbered through to the next point at which the pipeline is drained.
            most = 4 if "U" not in kinds else 8
            assert {each.microbatch for each in passes} == set(range(most))


@pytest.mark.ranks(4)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_a_model_in_pieces_learns_what_a_whole_one_learns(comm, tmp_path, mesh, optimizer):
    data = made(comm, tmp_path)
    options = {"strategy": "allreduce", "optimizer": optimizer, "lr": 0.02, "model": "mlp"}
    if mesh == "pipe=4":
        options |= {"dataset": "digits", "model": "cnn", "hidden": 8, "batch_size": 300, "epochs": 1}
    data = options.pop("dataset", data)
    result, weights = run(comm, data, tmp_path, "cut", mesh=mesh, microbatches=4, **options)
    copies = 2 if "data=2" in mesh else 4 if "data=4" in mesh else 1
    few = part(comm, copies)
    if few != MPI.COMM_NULL:
        expected, whole = run(few, data, tmp_path, "whole", **options)
        few.Free()
    if comm.rank == 0:
        same_weights(weights, whole)
        assert result["workers"] == copies and result["samples"] == expected["samples"]
        assert result["test_accuracy"] == expected["test_accuracy"]
        assert result["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-4)
        assert result["test_f1"] == pytest.approx(expected["test_f1"])
        assert result["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-4)
        assert {axis: size for axis, size in result["mesh"].items() if size > 1} == {
            name: int(size) for name, size in (each.split("=") for each in mesh.split(","))
        }
        assert (result["bubble"] is None) == ("pipe" not in mesh)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("mesh", ["pipe=2,data=2", "tensor=2,pipe=2"])
def test_a_model_in_pieces_drops_what_a_whole_one_drops(comm, tmp_path, mesh):
    options = {"model": "lecture-cnn", "dropout": 0.5, "epochs": 1, "batch_size": 200, "lr": 2e-3, "eval_every": 0}
    options |= {"strategy": "allreduce"}
    result, weights = run(comm, "digits", tmp_path, "cut", mesh=mesh, microbatches=3, **options)
    few = part(comm, 2 if "data=2" in mesh else 1)
    if few != MPI.COMM_NULL:
        expected, whole = run(few, "digits", tmp_path, "whole", **options)
        _, never = run(few, "digits", tmp_path, "never", **options | {"dropout": 0.0})
        few.Free()
    if comm.rank == 0:
        same_weights(weights, whole)
        assert result["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-4)
        assert any(np.abs(never[name] - whole[name]).max() > 2e-4 for name in whole)


@pytest.mark.ranks(6)
@pytest.mark.parametrize("strategy", ["sync", "allreduce", "averaging", "easgd"])
@pytest.mark.parametrize("axis", ["pipe", "tensor"])
def test_each_part_has_its_own_exchange(comm, tmp_path, strategy, axis):
    data, copies = made(comm, tmp_path), 3
    options = {"strategy": strategy}
    result, weights = run(comm, data, tmp_path, "cut", mesh=f"{axis}=2", **options)
    few = part(comm, copies)
    if few != MPI.COMM_NULL:
        _, whole = run(few, data, tmp_path, "whole", **options)
        few.Free()
    if comm.rank == 0:
        same_weights(weights, whole)
        assert (result["servers"], result["workers"]) == ((1, 2) if strategy == "sync" else (0, 3))


@pytest.mark.one_mpi
@pytest.mark.ranks(6)
@pytest.mark.parametrize("strategy", ["async", "ssp"])
def test_stages_with_servers_that_do_not_wait(comm, tmp_path, strategy):
    result, weights = run(comm, made(comm, tmp_path), tmp_path, "cut", mesh="pipe=2", strategy=strategy, epochs=6)
    if comm.rank == 0:
        assert result["samples"] == 6 * 203 and result["test_accuracy"] > 0.8
        assert all(np.isfinite(each).all() for each in weights.values())


@pytest.mark.ranks(4)
@pytest.mark.parametrize("mesh", ["pipe=2,data=2", "tensor=2,data=2"])
@pytest.mark.parametrize("option", [{"target_accuracy": 0.01}, {"early_stop": 1}])
def test_all_parts_of_all_copies_stop_after_the_same_step(comm, tmp_path, mesh, option):
    data = made(comm, tmp_path)
    result, _ = run(comm, data, tmp_path, "cut", mesh=mesh, strategy="allreduce", epochs=400, **option)
    if comm.rank == 0:
        assert result["samples"] < 400 * 203
        assert result["seconds_to_target"] is not None or "early_stop" in option


@pytest.mark.ranks(3)
def test_a_stage_without_parameters(comm, tmp_path):
    data = made(comm, tmp_path)
    _, weights = run(comm, data, tmp_path, "cut", mesh="pipe=3", cut="1,2", strategy="allreduce")
    alone = part(comm, 1)
    if comm.rank == 0:
        _, whole = run(alone, data, tmp_path, "whole", strategy="allreduce")
        same_weights(weights, whole)


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mesh": "pipe=4"}, "cut: expected 1 to 3 stages for 3 layers, as each stage needs one, got 4"),
        ({"mesh": "pipe=2", "cut": "1,2"}, "--cut 1,2: expected 1 cut for 2 stages"),
        ({"mesh": "pipe=2", "cut": "3"}, "--cut 3: expected rising layers from 1 to 2, the model has 3"),
        ({"mesh": "pipe=3"}, "mesh: pipe=3: expected 3 ranks, got 4; start it with -n 3"),
    ],
)
def test_what_cannot_be_cut_is_refused_on_all_ranks(comm, tmp_path, options, message):
    with pytest.raises(AgreedUsageError, match=message):
        training.run(TrainConfig(dataset=made(comm, tmp_path), strategy="allreduce", **COMMON | options), comm)


@pytest.mark.ranks(2)
def test_the_bubble_of_a_run(comm, tmp_path):
    result, _ = run(comm, made(comm, tmp_path), tmp_path, "cut", mesh="pipe=2", strategy="allreduce", microbatches=3)
    if comm.rank == 0:
        bubble = result["bubble"]
        assert (bubble["schedule"], bubble["ranks"], bubble["microbatches"]) == ("1f1b", 2, 3)
        assert bubble["expected"] == pytest.approx(1 / 4)
        assert 0 < bubble["share"] < 1


@pytest.mark.ranks(4)
@pytest.mark.parametrize("mesh", ["pipe=2,data=2", "tensor=2,data=2", "pipe=2,tensor=2"])
def test_gradients_are_clipped_by_the_norm_of_the_whole_model(comm, tmp_path, mesh):
    data, options = made(comm, tmp_path), {"strategy": "allreduce", "clip_norm": 0.05}
    _, weights = run(comm, data, tmp_path, "cut", mesh=mesh, **options)
    few = part(comm, 2 if "data" in mesh else 1)
    if few != MPI.COMM_NULL:
        _, whole = run(few, data, tmp_path, "whole", **options)
        few.Free()
    if comm.rank == 0:
        same_weights(weights, whole)


@pytest.mark.ranks(4)
@pytest.mark.parametrize(("before", "after"), [("pipe=2,data=2", "tensor=2,pipe=2"), ("tensor=4", "data=4")])
@pytest.mark.parametrize("strategy", ["allreduce", "sync"])
def test_a_run_is_resumed_in_another_factorisation(comm, tmp_path, before, after, strategy):
    if strategy == "sync":
        before, after = "pipe=2", "tensor=2"
    data, saved = made(comm, tmp_path), tmp_path / "saved"
    options = {"strategy": strategy, "optimizer": "adam", "lr": 0.01, "batch_size": 20, "eval_every": 0}
    kept = {"checkpoint_dir": saved, "checkpoint_every": 4}
    run(comm, data, tmp_path, "first", mesh=before, **kept, **options | {"epochs": 1})
    result, weights = run(comm, data, tmp_path, "second", mesh=after, resume=True, **kept, **options)
    if comm.rank == 0:
        assert result["samples"] >= 2 * 203 - 80 and all(np.isfinite(each).all() for each in weights.values())
        assert result["test_accuracy"] > 0.5


@pytest.mark.ranks(2)
@pytest.mark.parametrize("mesh", ["pipe=2", "tensor=2"])
def test_text_counts_by_token(comm, tmp_path, mesh):
    options = {"dataset": "genesis", "model": "gpt", "layers": 1, "width": 8, "heads": 2, "context": 64, "epochs": 1}
    options |= {"batch_size": 256, "optimizer": "momentum", "lr": 0.01, "eval_every": 0, "strategy": "allreduce"}
    data = options.pop("dataset")
    result, weights = run(comm, data, tmp_path, "cut", mesh=mesh, **options)
    alone = part(comm, 1)
    if comm.rank == 0:
        expected, whole = run(alone, data, tmp_path, "whole", **options)
        same_weights(weights, whole)
        assert result["test_accuracy"] == pytest.approx(expected["test_accuracy"], abs=1e-4)
        assert result["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-4)


@pytest.mark.ranks(2)
def test_what_is_dropped_does_not_depend_on_the_cut(comm, tmp_path):
    options = {"model": "lecture-cnn", "hidden": 8, "dropout": 0.5, "batch_size": 100, "epochs": 1, "eval_every": 0}
    options["strategy"] = "allreduce"
    _, weights = run(comm, "digits", tmp_path, "cut", mesh="pipe=2", microbatches=3, **options)
    alone = part(comm, 1)
    if comm.rank == 0:
        same_weights(weights, run(alone, "digits", tmp_path, "whole", **options)[1])
