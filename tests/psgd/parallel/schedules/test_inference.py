"""Inference has forward passes alone."""

from psgd.parallel.schedules import inference


def test_every_rank_runs_all_microbatches_in_order():
    schedule = inference.build(2, 3)
    assert [" ".join(map(str, program)) for program in schedule.programs] == ["F0 F1 F2"] * 2
    assert schedule.gradient_order == "none"
