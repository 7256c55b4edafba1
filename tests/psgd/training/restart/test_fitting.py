"""How a run is cut down to those that live, and grows."""

from dataclasses import replace

import pytest

from psgd.config import TrainConfig
from psgd.runtime.ulfm.options import standing_by
from psgd.training.restart import fitting

SYNC = TrainConfig(workers=3, servers=1, checkpoint_dir="x", spares=2)
PIPE = replace(SYNC, strategy="allreduce", mesh="pipe=2", workers=2, servers=0)


def test_only_a_run_on_cores_with_checkpoints_can_be_begun_again():
    assert fitting.can_restart(SYNC)
    assert not fitting.can_restart(replace(SYNC, checkpoint_dir=None))
    assert not fitting.can_restart(replace(SYNC, device="cuda"))
    assert not fitting.can_restart(replace(SYNC, trace="x"))


@pytest.mark.parametrize(
    ("config", "living", "acting"),
    [
        (SYNC, 6, 4),
        (SYNC, 4, 4),
        (SYNC, 3, 3),
        (replace(SYNC, replicas=1, servers=2), 5, 5),
        (replace(SYNC, replicas=1, servers=2), 3, 0),  # one worker's servers are not held twice
        (SYNC, 1, 0),
        (PIPE, 4, 4),
        (PIPE, 3, 2),  # one whole copy, and one rank that stands by
        (PIPE, 1, 0),
        (replace(SYNC, record="order"), 3, 0),  # a record is of that many workers
        (replace(SYNC, strategy="allreduce", servers=0), 1, 0),  # alone it is another run
    ],
)
def test_so_many_act_when_so_many_live(config, living, acting):
    assert fitting.acts(config, living) == acting


def test_a_run_that_grows_has_the_workers_of_its_part():
    config = replace(PIPE, grow="0.25:1,0.5:2,1:4", workers=1, spares=1)
    assert standing_by(config.spares, config.grow, config.parts) == 1 + 2 * 3
    second, third = fitting.grown(config, 8), fitting.grown(fitting.grown(config, 8), 6)
    assert (second.workers, second.grow, third.workers) == (2, config.grow, 3)  # of four that it would have
    assert fitting.grown(replace(third, workers=4), 8).grow is None
    assert fitting.grown(second, 4) == replace(second, grow=None)  # nobody is left to join


def test_a_run_that_leaves_goes_on_with_more_workers_where_its_part_is_over():
    config = replace(SYNC, grow="0.25:1,1:3", workers=1, spares=0, epochs=8)
    saved = {"requeue": True, "samples": 200, "train_samples": 100}
    assert fitting.left(config, saved) and fitting.has_ended(config, saved)
    assert not fitting.left(config, saved | {"requeue": False})
    assert not fitting.left(config, saved | {"samples": 800})  # it is complete
    assert not fitting.left(replace(config, grow=None), saved)
    assert not fitting.has_ended(config, saved | {"samples": 100})
    assert not fitting.has_ended(replace(config, workers=3), saved)
    after = fitting.after_leaving(config, True, 5)
    assert (after.workers, after.spares, after.resume) == (3, 1, True)


def test_a_dead_worker_of_a_run_that_has_gone_on_without_it_is_replaced():
    saved = {"requeue": True, "samples": 200, "train_samples": 100}
    assert fitting.left(SYNC, saved) and not fitting.has_ended(SYNC, saved)
    assert fitting.after_leaving(SYNC, False, 5) == replace(SYNC, resume=True, spares=1)
    assert fitting.after_leaving(SYNC, False, 3).workers == 2


def test_what_has_happened_to_a_rank_does_not_happen_to_its_successor():
    assert fitting.without_deaths("slow:0:2, kill:1@5,stop:s0@3:2,compute:0.1") == "slow:0:2,compute:0.1"
    assert fitting.without_deaths("") == ""
