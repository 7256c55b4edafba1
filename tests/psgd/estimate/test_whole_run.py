"""What would make a run fit is tried, not guessed."""

from dataclasses import replace

import pytest

from psgd.config import configure
from psgd.estimate import whole_run
from psgd.nn.models import build


def run(servers=0, workers=2, timed=True, **options):
    config = configure(**options)
    model = build(config.model, (1, 8, 8), 10, hidden=config.hidden, ranks=config.parts)
    return whole_run.of_model(config, model, servers, workers, timed)


def most(found):
    return max(each.total for each in found.ranks)


def test_what_fits_needs_no_word():
    found = run(strategy="allreduce")
    assert found.verdict(most(found), "cpu") == [] and found.verdict(0, "cuda") == []


def test_recomputing_is_named_where_it_suffices():
    wide = {"model": "resmlp", "hidden": 64, "batch_size": 4096, "strategy": "allreduce"}
    plain, less = run(**wide), run(**wide, recompute="all")
    said = plain.verdict(most(less), "cpu")
    assert "the batch does not fit" in said[0] and "the run fits with --recompute all" in said[-1]
    assert "--recompute" not in " ".join(plain.verdict(most(less) // 4, "cpu"))
    assert "--recompute" not in " ".join(less.verdict(most(less) - 1, "cpu"))  # it has that already


def test_what_the_run_would_refuse_is_not_named():
    large = {"model": "resmlp", "strategy": "allreduce", "optimizer": "adam", "hidden": 1024, "batch_size": 4}
    plain, less = run(**large), run(**large, shard=3)
    assert "--shard 3" in plain.verdict(most(less), "cpu")[-1]
    cut = run(**large, mesh="tensor=2")
    assert "--shard 3" in cut.verdict(most(cut) - 1, "cpu")[-1]
    for other in ({"compress": "onebit"}, {"mesh": "pipe=2", "pipe_schedule": "pipedream"}):
        refusing = run(**large, **other)
        assert "--shard" not in " ".join(refusing.verdict(most(refusing) - 1, "cpu"))
    meshed = run(**large, device="cuda", mesh="data=2")
    assert "--offload" in run(**large, device="cuda").verdict(most(meshed) - 1, "cuda")[-1]
    assert "--offload" not in " ".join(meshed.verdict(most(meshed) - 1, "cuda"))


def test_servers_and_pieces_have_words_of_their_own():
    served = run(1, hidden=4096, optimizer="adam")
    alone = replace(served, ranks=served.ranks[1:])
    assert alone.verdict(1000, "cpu")[-1] == "more --servers hold a part of the parameters each"
    cut = run(workers=1, timed=False, mesh="pipe=2", strategy="allreduce")
    assert cut.config.cut is not None and len(cut.ranks) == 2
    assert cut.verdict(1000, "cpu")[1] == "more pieces or microbatches need less"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_evaluation_goes_by_the_device(device):
    rows = run(strategy="allreduce", device=device).ranks[0].rows
    assert rows["evaluation"] == pytest.approx({"cpu": 1, "cuda": 2}[device] * 6.72e5, rel=0.01)
