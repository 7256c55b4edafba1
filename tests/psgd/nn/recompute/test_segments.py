"""The choice of segments."""

import pytest

from psgd.kernels.errors import UsageError
from psgd.nn.recompute import segments

LAYERS = 12


def kept(chosen):
    """A model in which each layer's inside takes 10 and its output 1."""
    inside = {layer for each in chosen for layer in each}
    return 11 * (LAYERS - len(inside)) + len(chosen) + max((10 * len(each) for each in chosen), default=0)


def test_all_leaves_out_layers_that_keep_nothing():
    def none(chosen):
        return sum(2 if each.start % 2 else 0 for each in chosen)

    assert segments.choose("all", 5, none) == ()

    def half(chosen):  # odd layers save 3 of 4
        inside = {layer for each in chosen for layer in each}
        return sum((1 if k in inside else 4) if k % 2 else (2 if k in inside else 1) for k in range(6))

    assert segments.choose("all", 6, half) == (range(1, 2), range(3, 4), range(5, 6))


def test_all_and_every_so_many():
    assert segments.choose("all", 3, kept) == (range(0, 1), range(1, 2), range(2, 3))
    assert segments.choose("5", LAYERS, kept) == (range(0, 5), range(5, 10), range(10, 12))


@pytest.mark.parametrize("most", [132, 131, 100, 60, 41, 22])
def test_bytes_are_kept_with_as_few_layers_as_possible(most):
    chosen = segments.choose(f"{most}B", LAYERS, kept)
    assert kept(chosen) <= most
    fewest = sum(map(len, chosen))
    for size in range(1, LAYERS + 1):
        for upto in range(0, fewest, size):
            assert kept(segments.every(size, LAYERS, upto)) > most


def test_what_no_choice_reaches_is_refused():
    with pytest.raises(UsageError, match="need 22 bytes with all recomputed"):
        segments.choose("21B", LAYERS, kept)


@pytest.mark.parametrize(
    ("given", "number"), [("80GB", 80 * 10**9), ("16 GiB", 16 * 2**30), ("1.5kb", 1500), ("7B", 7)]
)
def test_bytes_are_read(given, number):
    assert segments.read_bytes(given) == number


@pytest.mark.parametrize("given", ["", "many", "-1GB", "0B", "3XB", "0", "1.5"])
def test_what_is_no_wish(given):
    assert not segments.is_wish(given)
    with pytest.raises(UsageError, match="recompute: expected all, a number of layers, or bytes"):
        segments.choose(given, LAYERS, kept)
