"""Sizes of the benchmark."""

from psgd.launch.bench.gpt2.trial import GPT2Trial, tell

GPT2 = GPT2Trial(48, 1600, 25, 1024, 50257, 32, 4, 3, 8, 2, "cuda")


def test_a_step_is_cut_into_passes():
    assert GPT2.passes == 4


def test_operations_are_eight_a_parameter_and_token():
    parameters = 12 * 48 * 1600**2 + 50257 * 1600
    assert 1 < GPT2.flops / (8 * parameters * 32 * 1024) < 1.15


def test_one_rank_tells_how_it_goes(capsys):
    tell(1, "psgd", [3.0], [1.0])
    tell(0, "psgd", [3.0, 2.5], [1.0, 0.25])
    assert capsys.readouterr().err == "psgd, step 2: loss 2.5000, 0.25 s\n"
