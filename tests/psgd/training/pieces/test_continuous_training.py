"""Runs whose stages take their steps apart: the bits of delayed updates, copies, checkpoints, early ends."""

from itertools import pairwise

import numpy as np
import pytest
from harness import delayed

from psgd import training
from psgd.checkpoint.requests import CheckpointRequest
from psgd.config import TrainConfig
from psgd.data import load
from psgd.data.batches import Batches
from psgd.data.normalization import validate
from psgd.data.sampler import Sampler
from psgd.nn.models import build
from psgd.optim.optimizer import OptimizerOptions
from psgd.runtime.rng import bits
from psgd.training import preparation

COMMON = {"model": "mlp", "hidden": 24, "epochs": 2, "batch_size": 30, "lr": 0.1, "strategy": "allreduce"}
COMMON |= {"optimizer": "momentum", "schedule": "cosine", "eval_every": 0.5, "seed": 5}


def toy(comm, folder, samples=203, features=6, classes=3):
    """A separable problem as .npy files; returns its folder, once it is there."""
    if comm.rank == 0:
        rng = np.random.default_rng(0)
        centres = rng.normal(size=(classes, features)) * 2
        for part, n in (("train", samples), ("test", 90)):
            y = rng.permutation(np.arange(n) % classes)
            np.save(folder / f"y_{part}.npy", y)
            np.save(folder / f"x_{part}.npy", (centres[y] + rng.normal(size=(n, features))).astype(np.float32))
    comm.Barrier()
    return str(folder)


def run(comm, data, folder, name, request=None, **options):
    """Trains; returns the result, and the weights by name if it was not stopped, on rank 0; None elsewhere."""
    path = folder / f"{name}.npz"
    result = training.run(TrainConfig(dataset=data, save=path, **COMMON | options), comm, request=request)
    if comm.rank or result["requeue"]:
        return result, None
    with np.load(path) as found:
        return result, dict(found)


def simulate(data, cuts, size, delay, drained, **options):
    """The run in one process, by a pipeline that is drained after these steps: the weights by name, the last loss."""
    config = TrainConfig(dataset=data, **COMMON | options)
    dataset = load(data)
    own = {} if config.model != "mlp" else {"hidden": config.hidden}
    model = build(config.model, dataset.sample_shape, dataset.classes, **own | config.of_the_model())
    samples = dataset.train.samples
    schedule = preparation.schedule(config, samples, 1)
    optimizer = OptimizerOptions(preparation.rule(config, False), schedule)
    simulation = delayed.Simulation(model, cuts, optimizer, config.seed, size)
    sampler = Sampler(samples, 1, 0, config.batch_size, config.seed)
    read = Batches(dataset.train, validate(dataset), config.batch_size)
    for start, stop in pairwise([0, *drained]):
        steps = []
        for number in range(start, stop):
            epoch, step = divmod(number, sampler.steps)
            rows = sampler.batch(epoch, step)
            x, y = (part.copy() for part in read.fetch(rows))
            steps.append(delayed.Step(x, y, bits(config.seed, "step", epoch, step), rows))
        simulation.run(steps, delay)
    found = {}
    for stage, params in zip(simulation.stages, simulation.params, strict=True):
        found |= {stage.names_in_whole[name]: part for name, part in stage.layout.views(params).items()}
    return found


def same_bits(weights, expected):
    assert sorted(weights) == sorted(expected)
    for name, each in weights.items():
        assert np.array_equal(each, expected[name]), name


@pytest.mark.ranks(2, 3)
def test_a_run_has_the_bits_of_delayed_updates(comm, tmp_path):
    data, ranks = toy(comm, tmp_path), comm.size
    cuts = {2: (2,), 3: (1, 2)}[ranks]  # of three, the first stage has no parameters
    mesh = {"mesh": f"pipe={ranks}", "cut": ",".join(map(str, cuts))}
    for name, microbatches, delay in (
        ("pipedream", None, delayed.stashed(ranks)),
        ("pipedream", 2, delayed.stashed(ranks, 2)),
        ("pipedream-2bw", 4, delayed.two_versions),
    ):
        result, weights = run(comm, data, tmp_path, "cut", **mesh, pipe_schedule=name, microbatches=microbatches)
        if comm.rank == 0:
            # Steps of an epoch: 7, and an evaluation is due after each half of them.
            expected = simulate(data, cuts, -(-30 // (microbatches or 1)), delay, [4, 7, 11, 14])
            same_bits(weights, expected)
            assert result["steps"] == 14 and result["samples"] == 406 and result["test_accuracy"] > 0.8
            assert result["bubble"]["schedule"] == name and 0 < result["bubble"]["expected"] < 0.25
            assert 0 < result["train_loss"] < 1


@pytest.mark.ranks(2)
def test_what_is_dropped_goes_by_step_and_sample(comm, tmp_path):
    options = {"model": "lecture-cnn", "dropout": 0.5, "batch_size": 200, "epochs": 1, "eval_every": 0}
    named = {"mesh": "pipe=2", "cut": "3", "pipe_schedule": "pipedream"}
    _, weights = run(comm, "digits", tmp_path, "cut", **named, **options)
    if comm.rank == 0:
        same_bits(weights, simulate("digits", (3,), 200, delayed.stashed(2), [8], **options))


@pytest.mark.ranks(6)
def test_copies_average_each_stage_and_keep_pace(comm, tmp_path):
    data = toy(comm, tmp_path, samples=121)  # of two workers, the second has none in the third step of an epoch
    named = {"cut": "2", "pipe_schedule": "pipedream", "eval_every": 1.0}
    four = comm.Split(comm.rank >= 4, comm.rank)
    served, there = run(comm, data, tmp_path, "served", mesh="pipe=2", **named | {"strategy": "sync"})
    if comm.rank < 4:
        result, weights = run(four, data, tmp_path, "cut", mesh="pipe=2,data=2", **named)
    four.Free()
    if comm.rank == 0:
        expected = simulate(data, (2,), 60, delayed.stashed(2), [3, 6], batch_size=60)
        for found in (weights, there):
            for name, each in found.items():
                np.testing.assert_allclose(each, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)
        for each in (result, served):
            assert each["workers"] == 2 and each["samples"] == 242 and each["steps"] == 6


@pytest.mark.ranks(2)
def test_a_resumed_run_has_the_bits_of_one_that_goes_on(comm, tmp_path):
    data = toy(comm, tmp_path)
    named = {"mesh": "pipe=2", "cut": "2", "pipe_schedule": "pipedream", "eval_every": 0, "schedule": "constant"}
    kept = {"checkpoint_every": 3}
    _, expected = run(comm, data, tmp_path, "whole", checkpoint_dir=tmp_path / "one", **kept, **named)
    request = CheckpointRequest()
    if comm.rank == 1:
        request.ask(stop=True)  # as by a signal to one rank, which is answered where the pipeline is drained next
    first, _ = run(comm, data, tmp_path, "first", request, checkpoint_dir=tmp_path / "two", **kept, **named)
    result, weights = run(comm, data, tmp_path, "next", checkpoint_dir=tmp_path / "two", resume=True, **kept, **named)
    if comm.rank == 0:
        assert first["requeue"] and first["steps"] == 3
        assert result["steps"] == 14
        same_bits(weights, expected)
        drained = [3, 6, 7, 9, 12, 14]
        same_bits(expected, simulate(data, (2,), 30, delayed.stashed(2), drained, schedule="constant"))


@pytest.mark.ranks(4)
def test_a_target_ends_all_stages_one_step_later(comm, tmp_path):
    data = toy(comm, tmp_path)
    named = {"mesh": "pipe=2,data=2", "pipe_schedule": "pipedream", "target_accuracy": 0.01}
    result, _ = run(comm, data, tmp_path, "cut", epochs=400, **named)
    if comm.rank == 0:
        assert result["steps"] == 3 and result["seconds_to_target"] is not None
