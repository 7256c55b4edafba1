"""An estimate as text."""

import pytest

from psgd.estimate.rank_memory import Estimate
from psgd.estimate.table import lines, text


def test_the_largest_rows_come_first():
    said = lines([Estimate("worker", 2, {"small": 10, "large": 3000}), Estimate("server", 1, {"all": 7}, "cuda")])
    assert said[0] == "worker, 2 of them, on cpu" and said[5] == "server, 1 of them, on cuda"
    assert [line.split()[0] for line in said[1:4]] == ["large", "small", "sum"]
    assert said[3].endswith("3.01 kB")


def test_neighbours_that_need_the_same_have_one_table():
    same = [Estimate("worker tensor=0", 2, {"all": 7}), Estimate("worker tensor=1", 2, {"all": 7})]
    said = lines([*same, Estimate("server", 1, {"all": 8}), Estimate("server", 1, {"all": 8}, "cuda")])
    assert [line for line in said if "of them" in line] == [
        "worker tensor=0; worker tensor=1, 4 of them, on cpu",
        "server, 1 of them, on cpu",
        "server, 1 of them, on cuda",
    ]


@pytest.mark.parametrize(
    ("nbytes", "said"), [(999, "999 bytes"), (1234, "1.23 kB"), (80e9, "80 GB"), (999.9e6, "1000 MB")]
)
def test_bytes_as_text(nbytes, said):
    assert text(nbytes) == said
