"""`psgd.training.run` on real ranks: what is learned does not depend on how the work is spread."""

import json

import numpy as np
import pytest

from psgd import training
from psgd.checkpoint import folder
from psgd.config import TrainConfig
from psgd.nn.models import build
from psgd.runtime import new_files
from psgd.training.trainable import OwnModel


def toy(folder, samples=1003, features=6, classes=3, seed=0):
    """A separable problem written as .npy files, so that workers map it."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, features)) * 3
    for part, n in (("train", samples), ("test", 90)):
        y = rng.permutation(np.arange(n) % classes)
        np.save(folder / f"y_{part}.npy", y)
        np.save(folder / f"x_{part}.npy", (centres[y] + rng.normal(size=(n, features))).astype(np.float32))
    return str(folder)


def once(comm, folder, writer=toy, **arguments):
    if comm.rank == 0:
        writer(folder, **arguments)
    comm.Barrier()
    return str(folder)


def final(comm, config):
    """Runs and returns (result on rank 0, final weights)."""
    kept = {}
    connect = training.connect

    def spy(*arguments, **options):
        kept["connection"] = connect(*arguments, **options)
        return kept["connection"]

    training.connect = spy
    try:
        result = training.run(config, comm)
    finally:
        training.connect = connect
    return result, kept["connection"].params


def alone(config, comm):
    """The same run in one process on each rank."""
    from mpi4py import MPI

    return final(MPI.COMM_SELF, config)[1]


@pytest.mark.ranks(2, 3, 5)
@pytest.mark.parametrize("samples", [1003, 96, 3])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_sync_on_n_workers_equals_one_process_with_n_times_the_batch(comm, tmp_path, samples, optimizer):
    data = once(comm, tmp_path, samples=samples)
    workers = comm.size - 1
    options = {
        "dataset": data,
        "model": "softmax",
        "epochs": 3,
        "lr": 0.05,
        "optimizer": optimizer,
        "schedule": "cosine",
        "weight_decay": 1e-3,
        "clip_norm": 5.0,
    }
    _, together = final(comm, TrainConfig(batch_size=10, **options))
    single = alone(TrainConfig(batch_size=10 * workers, workers=1, servers=0, **options), comm)
    np.testing.assert_allclose(together, single, rtol=2e-5, atol=2e-6)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("servers", [1, 2])
def test_sync_is_reproducible_bit_for_bit(comm, servers):
    config = TrainConfig(epochs=2, strategy="sync", servers=servers, batch_size=16, model="mlp")
    first, again = (final(comm, config)[1] for _ in range(2))
    np.testing.assert_array_equal(first, again)


@pytest.mark.ranks(4)
def test_the_number_of_servers_changes_no_bit(comm):
    from mpi4py import MPI

    three = comm.Split(0 if comm.rank > 0 else MPI.UNDEFINED, comm.rank)
    config = TrainConfig(epochs=1, strategy="sync", batch_size=16, model="mlp")
    # the same two workers behind one server and behind two
    two_servers = final(comm, TrainConfig(**{**config.__dict__, "servers": 2}))[1]
    one_server = np.empty_like(two_servers)
    if three != MPI.COMM_NULL:
        one_server = final(three, TrainConfig(**{**config.__dict__, "servers": 1}))[1]
        np.testing.assert_array_equal(one_server, two_servers)
        three.Free()


@pytest.mark.ranks(5)
@pytest.mark.parametrize("strategy", ["sync", "async"])
@pytest.mark.parametrize(("samples", "batch"), [(1003, 10), (3, 10), (3, 1)])
def test_every_sample_counts_once_an_epoch_whatever_the_shards(comm, tmp_path, strategy, samples, batch):
    data = once(comm, tmp_path, samples=samples)
    config = TrainConfig(dataset=data, model="softmax", epochs=2, strategy=strategy, batch_size=batch)
    result, _ = final(comm, config)
    if comm.rank == 0:
        assert result["samples"] == 2 * samples
        assert result["workers"] == 4


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("strategy", ["sync", "async"])
def test_result_and_log(comm, tmp_path, strategy):
    config = TrainConfig(epochs=3, strategy=strategy, log=tmp_path / "log.jsonl")
    result = training.run(config, comm)
    if comm.rank != 0:
        assert result is None
        return
    promised = {
        "strategy", "workers", "servers", "device", "mpi", "epochs", "steps", "samples", "seconds",
        "samples_per_second", "train_loss", "test_accuracy", "bytes_sent", "bytes_received", "staleness",
        "lost_ranks", "checkpoint",
    }  # fmt: skip
    assert promised <= set(result)
    assert result["test_accuracy"] > 0.9
    assert result["samples"] == 3 * 1497
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines if line["event"] in ("start", "end")] == ["start", "end"]
    evaluated = [line["epoch"] for line in lines if line["event"] == "eval"]
    assert len(evaluated) == 3
    if strategy == "sync":
        assert evaluated == [1, 2, 3]
    assert [line["accuracy"] for line in lines if line["event"] == "eval"][-1] == result["test_accuracy"]
    assert lines[-1]["test_accuracy"] == result["test_accuracy"]
    count = sum(result["staleness"]["histogram"].values())
    assert count == (result["steps"] if strategy == "async" or comm.size == 1 else 2 * result["steps"])
    if strategy == "sync":
        assert result["staleness"] == {"mean": 0.0, "max": 0, "histogram": {"0": count}}
    if comm.size > 1:
        assert result["bytes_sent"] > result["steps"] * 1000


@pytest.mark.ranks(3)
def test_a_target_ends_the_run_early(comm):
    result = training.run(TrainConfig(epochs=50, target_accuracy=0.9), comm)
    if comm.rank == 0:
        assert result["samples"] < 10 * 1497
        assert 0 < result["seconds_to_target"] <= result["seconds"]
        assert result["test_accuracy"] > 0.85


@pytest.mark.ranks(1, 3)
def test_a_target_reached_at_the_very_end_has_its_time(comm):
    result = training.run(TrainConfig(epochs=2, eval_every=0, target_accuracy=0.5), comm)
    if comm.rank == 0:
        assert result["seconds_to_target"] == result["seconds"]


@pytest.mark.ranks(3)
def test_reported_accuracy_is_that_of_the_final_weights(comm):
    config = TrainConfig(epochs=2, strategy="async")
    result, weights = final(comm, config)
    if comm.rank == 0:
        from psgd.data import load
        from psgd.data.batches import Batches
        from psgd.data.normalization import validate
        from psgd.nn import models

        data = load("digits")
        model = models.build("mlp", data.sample_shape, data.classes)
        model.bind(weights)
        x, y = Batches(data.test, validate(data), 300).ordered(0, 300)
        correct, _ = model.evaluate(model.context(300), x, y)
        assert result["test_accuracy"] == correct / 300


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize(("strategy", "servers"), [("sync", 2), ("hogwild", 0)])
def test_final_weights_are_in_the_file(comm, tmp_path, strategy, servers):
    from psgd.nn import models

    servers = servers if comm.size > 1 else 0
    path = tmp_path / "w.npz"
    config = TrainConfig(epochs=1, strategy=strategy, servers=servers, placement="colocated", save=path)
    weights = final(comm, config)[1]
    if comm.rank == 0:
        layout = models.build("mlp", (64,), 10, hidden=256).layout
        with np.load(path) as found:
            assert all(np.array_equal(found[name], view) for name, view in layout.views(weights).items())
    assert [file.name for file in tmp_path.iterdir()] == ["w.npz"] or comm.rank


def test_weights_that_cannot_be_written_cost_the_file_not_the_run(tmp_path, capsys):
    path = tmp_path / "none" / "w.npz"
    model = OwnModel(build("softmax", (4,), 3))
    training._save(path, model, np.zeros(model.layout.size, np.float32), leads=True)
    assert capsys.readouterr().err == f"psgd: warning: --save {path}: cannot be written: No such file or directory\n"
    assert new_files.lost()[-1:] == [f"--save {path}"]


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize("strategy", ["sync", "async", "allreduce", "hogwild"])
def test_a_run_that_gets_no_better_stops_early_on_all_ranks(comm, tmp_path, strategy):
    """With a rate of almost 0 the first evaluation stays the best: it ends two evaluations of worker 0 later."""
    if strategy in ("allreduce", "hogwild") and comm.size == 4:
        return
    options = {"epochs": 60, "lr": 1e-30, "early_stop": 2, "model": "softmax", "log": tmp_path / "log.jsonl"}
    config = TrainConfig(strategy=strategy, **options)
    result, weights = final(comm, config)
    alike = comm.allgather(weights.tobytes())
    assert len(set(alike)) == 1
    if comm.rank == 0:
        if strategy in ("sync", "allreduce"):
            assert 3 * 1497 <= result["samples"] <= 3 * 1497 + 2 * 32 * comm.size
        assert result["samples"] < 20 * 1497
        lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
        assert len([line for line in lines if line["event"] == "eval"]) == 3 + 1
        assert result["best_accuracy"] == result["test_accuracy"]


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("strategy", ["sync", "allreduce"])
def test_the_best_is_saved_and_kept(comm, tmp_path, strategy):
    """With a rate of almost 0 the first evaluation stays the best: its checkpoint stays, newer ones push out others."""
    folder_ = tmp_path / "runs"
    config = TrainConfig(
        epochs=8, strategy=strategy, checkpoint_dir=folder_, checkpoint_every=10, checkpoint_keep=2, keep_best=True,
        log=tmp_path / "log.jsonl", lr=1e-30,
    )  # fmt: skip
    training.run(config, comm)
    if comm.rank == 0:
        found = folder.readable(folder_)
        best = folder.best_of(found)
        lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
        tested = [(line["accuracy"], line["samples"]) for line in lines if line["event"] == "eval"]
        accuracy, samples = max(tested, key=lambda each: each[0])
        assert len(found) == 3 and found[-1].path == best.path, found
        assert best.manifest.accuracy == accuracy
        assert samples < best.manifest.samples <= samples + 3 * 32 * comm.size
    comm.Barrier()
