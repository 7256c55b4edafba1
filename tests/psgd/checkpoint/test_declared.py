"""Declared arrays and facts: what each worker saves, and what the same or another number of workers gets back."""

from types import SimpleNamespace

import numpy as np
import pytest

from psgd.checkpoint.declared import Arrays, Combine, Fact, OwnFacts, restore_all, save
from psgd.checkpoint.state import State
from psgd.kernels.errors import CheckpointError


def saved(combine, values=(1.0, 2.0, 6.0), **more):
    """The states of workers that have an array full of such a value each."""
    arrays = [np.full(2, value) for value in values]
    return [save([Arrays({"a": array}, combine, **more)], worker) for worker, array in enumerate(arrays)]


def restored(combine, own, states, worker, **more):
    """The array and the lines of a worker that begins with 9s."""
    array = np.full(2, 9.0)
    lines = restore_all([Arrays({"a": array}, combine, **more)], own, states, worker)
    assert array[0] == array[1]
    return array[0], lines


def test_tensors_are_views():
    array = np.zeros(2)
    state = save([Arrays({"a": array}, Combine.FRESH)], 0)
    array[:] = 5
    assert state.tensors["a"].tolist() == [5, 5]


@pytest.mark.parametrize("combine", [each for each in Combine if each is not Combine.ALIKE])
def test_each_gets_back_its_own_where_the_number_of_workers_is_the_same(combine):
    states = saved(combine)
    for worker, value in enumerate((1.0, 2.0, 6.0)):
        assert restored(combine, states[worker], states, worker, found="no", missing="no") == (value, [])


def test_another_number_of_workers():
    for combine, first, second in (
        (Combine.FRESH, 9.0, 9.0),
        (Combine.MEAN, 3.0, 3.0),
        (Combine.SUM, 9.0, 9.0),  # 1 + 2 + 6 on worker 0, and what it was on the other
        (Combine.FIRST, 1.0, 1.0),
    ):
        states = [State(), *saved(combine)]  # a server's has none
        assert [restored(combine, None, states, worker)[0] for worker in (0, 1)] == [first, second], combine
    states = saved(Combine.SUM, (1.0, 2.0, 7.0))
    assert [restored(Combine.SUM, None, states, worker)[0] for worker in (0, 1)] == [10.0, 9.0]
    assert restored(Combine.MEAN, None, saved(Combine.MEAN), 0, factor=0.5)[0] == 1.5


def test_weights_are_what_the_run_would_end_with():
    array = np.zeros(2)
    states = [State({"params": np.full(2, 1.0)}), State({"params": np.full(2, 5.0)})]
    restore_all([Arrays({"params": array}, Combine.WEIGHTS)], None, states, 1)
    assert array.tolist() == [3, 3]
    states.append(State({"centre": np.full(2, 7.0)}, {"weights": "centre"}))
    restore_all([Arrays({"params": array}, Combine.WEIGHTS)], None, states, 1)
    assert array.tolist() == [7, 7]


def test_what_all_have_alike_one_saves_and_restores():
    states = saved(Combine.ALIKE)
    assert [list(state.tensors) for state in states] == [["a"], [], []]
    assert restored(Combine.ALIKE, states[0], states, 0) == (1.0, [])
    assert restored(Combine.ALIKE, None, states[::-1], 0) == (1.0, [])
    assert restored(Combine.ALIKE, None, states, 1) == (9.0, [])
    with pytest.raises(CheckpointError, match="this checkpoint has no a: it was saved with other options"):
        restored(Combine.ALIKE, None, [State()], 0)


def test_an_owner_saves_for_all():
    centre = {"a": np.full(2, 4.0)}
    states = [save([Arrays(centre, Combine.ALIKE, owner=1, weights="a")], worker) for worker in range(2)]
    assert states[0] == State() and states[1].facts == {"weights": "a"}
    again = np.zeros(2)
    item = Arrays({"a": again}, Combine.ALIKE, owner=2, weights="a")
    for worker, value in ((0, 0.0), (2, 4.0)):
        assert item.restore(None, states, worker) == [] and again.tolist() == [value] * 2
    item = Arrays({"a": np.zeros(2)}, Combine.FRESH, owner=0)
    assert save([item], 1) == State() and item.restore(State(), [], 1) == []


@pytest.mark.parametrize("combine", [Combine.MEAN, Combine.SUM])
def test_lines_tell_what_became_of_it(combine):
    told = {"found": "combined", "missing": "anew"}
    assert restored(combine, None, saved(combine), 1, **told)[1] == ["combined"]
    assert restored(combine, None, [State()], 1, **told) == (9.0, ["anew"])
    assert restored(combine, None, [State()], 1) == (9.0, [])
    assert Arrays({}, combine, **told).restore(None, saved(combine), 0) == []


def test_facts_that_all_have_alike():
    owner = SimpleNamespace(version=3, _samples=7)
    items = [Fact("version", owner), Fact("samples", owner, "_samples"), Fact("made", owner, default=0)]
    owner.made = 5
    states = [save(items, 0), State(facts={"version": 4})]
    assert states[0].facts == {"version": 3, "samples": 7, "made": 5}
    owner.version = owner._samples = owner.made = -1
    assert restore_all(items, None, states, 0) == [] and (owner.version, owner._samples, owner.made) == (4, 7, 5)
    restore_all(items, states[0], states, 0)
    assert owner.version == 3
    restore_all(items[2:], None, states[1:], 0)
    assert owner.made == 0
    with pytest.raises(CheckpointError, match="has no samples"):
        restore_all(items, None, states[1:], 0)
    Fact("steps", owner, "made", also="version").restore(None, states, 0)
    assert owner.made == 4


def test_facts_of_ones_own():
    owner = SimpleNamespace(calls=2)
    item = Fact("calls", owner, combine=Combine.FRESH)
    state = save([item], 0)
    owner.calls = 0
    assert item.restore(None, [state], 0) == [] and owner.calls == 0
    assert item.restore(state, [state], 0) == [] and owner.calls == 2
    with pytest.raises(CheckpointError, match="has no calls"):
        item.restore(State(), [state], 0)


def test_facts_through_functions():
    got = []
    item = OwnFacts(lambda: {"place": [1, 2], "line": 3}, got.append)
    state = save([item, Fact("more", SimpleNamespace(more=1))], 0)
    assert state.facts == {"place": [1, 2], "line": 3, "more": 1}
    assert item.restore(None, [state], 0) == item.restore(state, [], 0) == []
    assert got == [{"place": [1, 2], "line": 3}]
    with pytest.raises(CheckpointError, match="has no line"):
        item.restore(State(facts={"place": 0}), [], 0)
