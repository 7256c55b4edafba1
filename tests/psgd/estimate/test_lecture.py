"""The sums that are taught, digit by digit."""

from psgd.estimate import lecture


def test_the_sum_of_gpt2():
    rows = dict(lecture.gpt2_sum())
    assert [rows[name] for name in ("parameters", "gradients", "Adam, 3 numbers a parameter")] == [6.0, 6.0, 18.0]
    assert int(rows["token embeddings"] * 100) == 19 and round(rows["position embeddings"], 3) == 0.006
    assert rows["activations of 48 layers"] == 56.25
    assert 86 < rows["sum"] < 87


def test_the_table_of_mixed_precision():
    _, memory, relative = lecture.mixed_precision_table()
    assert memory[1:] == ("5.12 GB", "24 GB", "275 GB", "2800 GB")
    assert relative[1:] == ("1", "4.7", "54", "547")


def test_what_is_left_out_is_said():
    assert "3.36 GB a layer" in "\n".join(lecture.lines())
