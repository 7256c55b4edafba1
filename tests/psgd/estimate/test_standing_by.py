"""What ranks that stand by need."""

from pathlib import Path

from psgd.config import TrainConfig
from psgd.estimate.rank_memory import Estimate
from psgd.estimate.standing_by import SPARE, with_spares
from psgd.estimate.whole_run import RunMemory

RANKS = [Estimate("worker", 3, {"parameters": 5, "gradients": 4}), Estimate("server", 1, {"parameters": 12})]


def run(**options):
    config = TrainConfig(checkpoint_dir=Path("c"), **options)
    return with_spares(RunMemory(config, RANKS, 1, "float32", lambda batch: 0))


def test_a_spare_needs_as_much_as_whoever_needs_the_most():
    assert run().ranks == RANKS
    *same, spare = run(spares=2).ranks
    assert same == RANKS and spare == Estimate(SPARE, 2, {"parameters": 12})
