"""What a worker declares is saved once, comes back to the same workers, and is combined for others."""

from types import SimpleNamespace

import numpy as np
import pytest

from psgd.checkpoint.declared import Arrays, Combine, Fact, OwnFacts, restore_all, save
from psgd.checkpoint.state import State
from psgd.kernels.errors import CheckpointError


def worker(k):
    """What worker k of three keeps, and the objects behind it."""
    arrays = {
        name: np.full(4, base + k) for name, base in (("alike", 0.0), ("own", 10.0), ("left", 20.0), ("mean", 30.0))
    }
    arrays["alike"][:] = 7.0
    counts = SimpleNamespace(version=5, steps=100 + k)
    extra = {"seen": [k]}
    items = [
        Arrays({"alike": arrays["alike"]}, Combine.ALIKE),
        Arrays({"own": arrays["own"]}, Combine.FRESH, found="own: begins anew"),
        Arrays({"left": arrays["left"]}, Combine.SUM, found="left: worker 0 has the sum"),
        Arrays({"mean": arrays["mean"]}, Combine.MEAN, factor=0.5, found="mean: of all"),
        Fact("version", counts),
        Fact("steps", counts, combine=Combine.FRESH),
        OwnFacts(lambda: dict(extra), extra.update),
    ]
    return SimpleNamespace(arrays=arrays, counts=counts, extra=extra, items=items)


def cleared(k):
    one = worker(k)
    for array in one.arrays.values():
        array[:] = -1
    one.counts.version = one.counts.steps = -1
    one.extra["seen"] = []
    return one


@pytest.fixture
def states():
    return [save(worker(k).items, k) for k in range(3)]


def test_what_all_have_alike_is_saved_by_one(states):
    assert [sorted(state.tensors) for state in states] == [
        ["alike", "left", "mean", "own"],
        ["left", "mean", "own"],
        ["left", "mean", "own"],
    ]
    assert [state.facts["steps"] for state in states] == [100, 101, 102]


@pytest.mark.parametrize("k", [0, 2])
def test_the_same_workers_get_back_what_they_had(states, k):
    one, wanted = cleared(k), worker(k)
    assert restore_all(one.items, states[k], states, k) == []
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, wanted.arrays[name] if name != "alike" or k == 0 else -1.0)
    assert (one.counts.version, one.counts.steps, one.extra) == (5, 100 + k, {"seen": [k]})


@pytest.mark.parametrize("k", [0, 1])
def test_other_workers_share(states, k):
    one = cleared(k)
    lines = restore_all(one.items, None, states, k)
    assert lines == ["own: begins anew", "left: worker 0 has the sum", "mean: of all"]
    assert one.arrays["alike"][0] == (7.0 if k == 0 else -1.0)
    assert one.arrays["own"][0] == -1.0
    assert one.arrays["left"][0] == (20.0 + 21.0 + 22.0 if k == 0 else -1.0)
    assert one.arrays["mean"][0] == 0.5 * 31.0
    assert (one.counts.version, one.counts.steps, one.extra) == (5, -1, {"seen": []})


def test_weights_go_by_the_name_that_the_saved_run_gave_them():
    centre = np.arange(3.0)
    state = save([Arrays({"centre": centre}, Combine.ALIKE, weights="centre")], 0)
    assert state.facts["weights"] == "centre"
    params = np.zeros(3)
    restore_all([Arrays({"params": params}, Combine.WEIGHTS)], None, [state], 1)
    np.testing.assert_array_equal(params, centre)


def test_the_first_that_saved_it_is_for_all():
    states = [State({}, {}), State({"tau": np.array([3.0])}, {}), State({"tau": np.array([4.0])}, {})]
    tau = np.zeros(1)
    restore_all([Arrays({"tau": tau}, Combine.FIRST)], None, states, 2)
    assert tau[0] == 3.0


def test_a_fact_may_have_another_name_elsewhere_or_a_default():
    owner = SimpleNamespace(known=0)
    states = [State({}, {"samples": 4}), State({}, {"samples": 9})]
    restore_all([Fact("known", owner, also="samples")], None, states, 0)
    assert owner.known == 9
    restore_all([Fact("known", owner, default=2)], None, states, 0)
    assert owner.known == 2
    with pytest.raises(CheckpointError, match="known"):
        restore_all([Fact("known", owner)], None, states, 0)
