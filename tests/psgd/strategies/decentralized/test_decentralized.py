"""The options of strategy decentralized, and who is linked with whom."""

import numpy as np
import pytest

import psgd
from psgd.kernels.errors import UsageError
from psgd.strategies.decentralized import decentralized


def reached(links):
    seen, new = {0}, [0]
    while new:
        new = [other for one in new for other in links[one] if other not in seen]
        seen.update(new)
    return seen


@pytest.mark.parametrize("workers", [2, 3, 4, 5, 8, 33])
@pytest.mark.parametrize("peers", ["all", "ring", "random:2", "random:3", "random:4", "random:100"])
def test_links_go_both_ways_and_reach_everyone(peers, workers):
    links = decentralized.links(peers, workers)
    assert links == decentralized.links(peers, workers)
    assert reached(links) == set(range(workers))
    for one, others in enumerate(links):
        assert others == sorted(set(others) - {one})
        assert all(one in links[other] for other in others)


def test_links_are_as_many_as_was_said():
    assert decentralized.links("all", 4) == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]
    assert decentralized.links("ring", 5) == [[1, 4], [0, 2], [1, 3], [2, 4], [0, 3]]
    assert decentralized.links("ring", 2) == [[1], [0]]
    for degree in (2, 3, 5, 6):
        degrees = [len(others) for others in decentralized.links(f"random:{degree}", 101)]
        assert max(degrees) <= degree and np.mean(degrees) > degree - 0.5
    assert decentralized.links("random:2", 9) != decentralized.links("ring", 9)


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"peers": "star"}, "peers: expected all, ring, random:D"),
        ({"peers": "random:1"}, "peers: expected all, ring, random:D"),
        ({"peers": "random:"}, "peers: expected all, ring, random:D"),
        ({"peers": 3}, "peers: expected all, ring, random:D"),
        ({"window": 0}, "window: expected a whole number, at least 1"),
        ({"window": 1.5}, "window: expected a whole number"),
        ({"rule": "adam"}, "expected sgd or momentum"),
        ({"rule": "nesterov"}, "expected sgd or momentum"),
        ({"peers": "pairs", "compress": "topk"}, "averages whole parameters"),
        ({"staleness": 3}, "strategy decentralized: expected"),
    ],
)
def test_wrong_options_are_the_same_error_on_all_ranks(comm, options, message):
    with pytest.raises(UsageError, match=message), psgd.connect(comm, np.zeros(4), strategy="decentralized", **options):
        pass
