"""What does not fit, and what would."""

from psgd.config import configure
from psgd.estimate import activations
from psgd.estimate.rank_memory import Estimate, of_run
from psgd.estimate.verdict import verdict
from psgd.nn.models import build

MODEL = build("mlp", (1, 8, 8), 10, hidden=32)


def bytes_of(batch):
    return activations.count(MODEL, batch)


def need(batch):
    return of_run(configure(batch_size=batch), MODEL, 0, 1)[0]


def test_what_fits_needs_no_word():
    assert verdict(need(64), need(64).total, bytes_of, 64) == []


def test_the_largest_batch_that_fits_is_said_and_fits():
    lines = verdict(need(64), need(20).total, bytes_of, 64)
    assert "the batch does not fit, one sample does" in lines[0]
    assert lines[1] == "--batch-size 20 fits"
    words = lines[2].split()
    parts, steps = int(words[1]), int(words[3])
    assert parts * steps >= 64 > parts * (steps - 1) and parts < 20  # the sum of gradients takes memory too
    accumulating = configure(batch_size=parts, strategy="allreduce", accumulate=steps)
    assert of_run(accumulating, MODEL, 0, 1)[0].total <= need(20).total


def test_one_sample_that_does_not_fit():
    (line,) = verdict(need(64), need(1).total - 1, bytes_of, 64)
    assert "one sample does not fit; most are evaluation" in line


def test_a_server():
    lines = verdict(Estimate("server", 1, {"parameters": 100}), 99, bytes_of, 1)
    assert lines == ["a server needs 100 bytes, 99 bytes are there: the parameters do not fit"]
