"""Whole runs with `--offload`, on a played GPU: bits, evaluations, checkpoints, strategies with steps of their own."""

import numpy as np
import pytest
from harness.offload import PlayedBackend
from mpi4py import MPI

from psgd.config import configure
from psgd.kernels.errors import UsageError
from psgd.training import preparation, run

BASE = {"epochs": 3, "hidden": 24, "servers": 0, "workers": 1, "optimizer": "adam", "lr": 0.003, "eval_every": 0.5}


@pytest.fixture
def train(monkeypatch):
    """Runs on one rank; `offload` as on a GPU."""
    host = preparation.backend

    def backend(config, model, dataset, statistics, by=None):
        if config.offload is None:
            return host(config, model, dataset, statistics, by)
        return PlayedBackend(config, model, dataset, statistics, by)

    monkeypatch.setattr(preparation, "backend", backend)
    monkeypatch.setattr("psgd.worker.starter._zeros", lambda like, pinned: np.zeros_like(like))
    return lambda **options: run(configure(**(BASE | options)), MPI.COMM_SELF)


def told(result):
    return {name: result[name] for name in ("train_loss", "test_loss", "test_accuracy", "samples")}


@pytest.mark.parametrize("clip", [0.0, 0.3])
@pytest.mark.parametrize("what", ["optimizer", "parameters"])
def test_a_run_has_the_bits_of_one_without(train, what, clip, tmp_path):
    whole, got = (train(clip_norm=clip, offload=each) for each in (None, what))
    assert told(whole) == told(got) and whole["test_accuracy"] > 0.9
    stays = {"clip_norm": clip, "offload": what, "checkpoint_dir": tmp_path, "checkpoint_every": 30}
    stopped = train(**stays | {"epochs": 1})
    again = train(**stays, resume=True)
    assert told(again) == told(whole) and stopped["samples"] < again["samples"]


def test_one_step_behind_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(train, tmp_path):
    late = {"offload": "optimizer", "offload_staleness": 1, "checkpoint_every": 47}
    whole = train(**late, checkpoint_dir=tmp_path / "a")
    train(**late | {"epochs": 1}, checkpoint_dir=tmp_path / "b")
    again = train(**late, checkpoint_dir=tmp_path / "b", resume=True)
    assert told(again) == told(whole) and whole["test_accuracy"] > 0.9
    assert told(train())["train_loss"] != told(whole)["train_loss"]


@pytest.mark.parametrize("options", [{"strategy": "easgd"}, {"own": 2}, {"on_nan": "stop"}], ids=str)
def test_who_takes_whole_steps_is_the_same_too(train, options):
    options = {"accumulate": 2} if "own" in options else options
    whole, got = (train(offload=each, **options) for each in (None, "optimizer"))
    assert told(whole) == told(got)


def test_steps_that_a_strategy_takes_are_not_late(train):
    with pytest.raises(UsageError, match="--offload-staleness 1: expected a single worker"):
        train(strategy="easgd", offload="optimizer", offload_staleness=1)
