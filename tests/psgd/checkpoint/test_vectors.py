import numpy as np
import pytest
from harness.saving import sharded

from psgd.checkpoint import vectors
from psgd.checkpoint.state import State
from psgd.collectives.mpi.split import split
from psgd.kernels.errors import CheckpointError

N = 1003
PARAMS = np.random.default_rng(0).standard_normal(N).astype(np.float32)
VELOCITY = np.random.default_rng(1).standard_normal(N)


def shards(parts, align=16):
    return [
        sharded(part, N, {"params": PARAMS[part.start : part.stop], "rule.0": VELOCITY[part.start : part.stop]})
        for part in split(N, parts, align)
    ]


@pytest.mark.parametrize("servers", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("later", [1, 2, 7])
def test_any_number_becomes_any_other(servers, later):
    states = shards(servers)[::-1]
    whole = vectors.assemble(states)
    assert whole.keys() == {"params", "rule.0"}
    pieces = [{name: vector[part.start : part.stop] for name, vector in whole.items()} for part in split(N, later)]
    assert np.concatenate([piece["params"] for piece in pieces]).tobytes() == PARAMS.tobytes()
    assert np.concatenate([piece["rule.0"] for piece in pieces]).tobytes() == VELOCITY.tobytes()


def test_nothing_is_nothing():
    assert vectors.assemble([]) == {}


def spoil(change):
    states = shards(3)
    change(states)
    return states


@pytest.mark.parametrize(
    "change",
    [
        lambda states: states.pop(),
        lambda states: states.pop(0),
        lambda states: states.pop(1),
        lambda states: states.append(states[1]),
        lambda states: states[1].tensors.update(params=states[1].tensors["params"][:-1]),
        lambda states: states[1].tensors.update(params=states[1].tensors["params"].astype(np.float64)),
        lambda states: states[1].tensors.pop("rule.0"),
        lambda states: states[1].facts.pop("range"),
        lambda states: states[1].facts.pop("cut"),
        lambda states: states[1].facts.update(range=[0, 1]),
        lambda states: states[1].facts.update(range=["a", [], {}]),
        lambda states: states[1].facts.update(range=None),
        lambda states: states[0].facts.update(range=[0, -5, N]),
        lambda states: states[2].facts.update(range=[*states[2].facts["range"][:2], N + 1]),
        lambda states: states[2].facts.update(cut=["params"]),
        lambda states: states[0].facts.update(cut=[[]]),
        lambda states: states[0].facts.update(cut=7),
    ],
)
def test_what_does_not_fit_is_refused(change):
    with pytest.raises(CheckpointError, match=r"do not fit|range: expected a list of 3 whole numbers"):
        vectors.assemble(spoil(change))


def test_weights():
    centre = State({"params": PARAMS, "centre": PARAMS + 1}, {"weights": "centre"})
    local = [State({"params": PARAMS + i}) for i in range(3)]
    assert np.array_equal(vectors.weights(shards(3)), PARAMS)
    assert np.array_equal(vectors.weights([*shards(2), *local]), PARAMS)
    assert np.array_equal(vectors.weights([*local, centre]), PARAMS + 1)
    assert np.allclose(vectors.weights(local), PARAMS.astype(np.float64) + 1, atol=1e-6)
    assert vectors.weights(local[:1]).tobytes() == PARAMS.tobytes()
    for bad in ([], [State({"x": PARAMS})], [State({"params": PARAMS}), State({"params": PARAMS[1:]})]):
        with pytest.raises(CheckpointError, match="no weights"):
            vectors.weights(bad)
    with pytest.raises(CheckpointError):
        vectors.weights([State({"params": PARAMS}, {"weights": []})])


def test_parts_of_codecs_are_joined_in_the_order_of_servers():
    parts = {"1.velocity": np.ones(2), "0.velocity": np.zeros(3), "0.residual": np.ones(9), "velocity": np.ones(5)}
    assert vectors.joined(parts, "velocity").tolist() == [0, 0, 0, 1, 1]
    assert vectors.joined({f"{index}.r": np.array([index]) for index in range(12)}, "r").tolist() == list(range(12))


@pytest.mark.parametrize(
    "parts", [{}, {"x.r": np.ones(1)}, {"0.r": np.array(1.0)}, {"0.r": np.ones(2), "1.r": np.ones(2, int)}]
)
def test_parts_of_codecs_that_cannot_be_are_refused(parts):
    with pytest.raises(CheckpointError, match=r"expected vectors 0\.r"):
        vectors.joined(parts, "r")
