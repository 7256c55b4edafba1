import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psgd.kernels.errors import UsageError
from psgd.parallel.cuts.partition import LayerCost, check_cuts, partition


def seconds(*values):
    return [LayerCost(float(value)) for value in values]


def slowest(costs, cuts):
    ends = [0, *cuts, len(costs)]
    return max(sum(each.seconds for each in costs[a:b]) for a, b in itertools.pairwise(ends))


def largest(costs, cuts, in_flight):
    ends = [0, *cuts, len(costs)]
    parts = [costs[a:b] for a, b in itertools.pairwise(ends)]
    return max(
        sum(each.held for each in part) + n * sum(each.alive for each in part)
        for part, n in zip(parts, in_flight, strict=True)
    )


@pytest.mark.parametrize(
    ("times", "stages", "expected"),
    [
        ((1, 1, 1, 1), 2, (2,)),
        ((1, 1, 1, 9), 2, (3,)),
        ((9, 1, 1, 1), 2, (1,)),
        ((5, 1, 1, 1, 5), 3, (1, 4)),
        ((1, 2, 3), 3, (1, 2)),
        ((4, 4), 1, ()),
        ((0, 0, 0), 3, (1, 2)),  # no stage is empty, whatever its layers take
    ],
)
def test_cuts(times, stages, expected):
    assert partition(seconds(*times), stages) == expected


whole = st.integers(0, 9)
layer_costs = st.lists(st.builds(LayerCost, whole.map(float), whole, whole), min_size=1, max_size=7)


@given(layer_costs, st.data())
def test_no_cut_of_all_is_better(costs, data):
    stages = data.draw(st.integers(1, len(costs)))
    in_flight = data.draw(st.lists(st.integers(1, 4), min_size=stages, max_size=stages))
    memory = data.draw(st.one_of(st.none(), st.integers(0, 80)))
    every = list(itertools.combinations(range(1, len(costs)), stages - 1))
    fitting = [cuts for cuts in every if memory is None or largest(costs, cuts, in_flight) <= memory]
    if not fitting:
        least = min(largest(costs, cuts, in_flight) for cuts in every)
        with pytest.raises(UsageError, match=f"fits into {memory:,} bytes a rank: the best needs {least:,};"):
            partition(costs, stages, memory, in_flight)
        return
    found = partition(costs, stages, memory, in_flight)
    assert found in fitting
    assert slowest(costs, found) == min(slowest(costs, cuts) for cuts in fitting)
    assert check_cuts(found, len(costs), stages) == found


def test_memory_moves_a_cut():
    costs = [LayerCost(1.0, 10, 4), LayerCost(1.0, 10, 4), LayerCost(1.0, 10), LayerCost(1.0, 10)]
    assert partition(costs, 2) == (2,)
    assert partition(costs, 2, memory=36, in_flight=(2, 1)) == (2,)
    assert partition(costs, 2, memory=35, in_flight=(2, 1)) == (1,)  # 36 bytes on the first stage before


@pytest.mark.parametrize("stages", [0, 4])
def test_more_stages_than_layers(stages):
    with pytest.raises(UsageError, match=f"expected 1 to 3 stages for 3 layers, as each stage needs one, got {stages}"):
        partition(seconds(1, 1, 1), stages)


def test_a_number_of_microbatches_for_each_stage():
    with pytest.raises(UsageError, match="in_flight: expected a number for each of 2 stages, got 1"):
        partition(seconds(1, 1, 1), 2, in_flight=[1])


@pytest.mark.parametrize(
    ("cuts", "stages", "message"),
    [
        ((3, 5), 2, r"--cut 3,5: expected 1 cut for 2 stages: .* got 2"),
        ((), 3, "expected 2 cuts for 3 stages"),
        ((0,), 2, "--cut 0: expected rising layers from 1 to 5, the model has 6"),
        ((6,), 2, "expected rising layers"),
        ((3, 3), 3, "--cut 3,3: expected rising layers"),
        ((4, 2), 3, "expected rising layers"),
        ((-1,), 2, "expected rising layers"),
    ],
)
def test_cuts_by_hand_that_leave_a_stage_empty(cuts, stages, message):
    with pytest.raises(UsageError, match=message):
        check_cuts(cuts, 6, stages)
