"""`psgd.connect` with a part of a model: the bits of one process that sums alike, and what is refused."""

import numpy as np
import pytest
from harness.oracle import same_error
from harness.pieces import Run, expected

from psgd.checkpoint.pieces.model_part import ModelPart
from psgd.connector import in_pieces
from psgd.kernels.errors import ContractError, UsageError
from psgd.nn.layout import Layout
from psgd.parallel.mesh import ProcessMesh

CLIP = 1.5
RULES = ["sgd", "momentum", "nesterov", "adam"]


@pytest.mark.ranks(4)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("pipe", "tensor"), [(4, 1), (2, 2), (2, 1), (1, 2), (1, 4)])
def test_allreduce_has_the_bits_of_one_process(comm, rule, pipe, tensor):
    run = Run(comm, pipe, tensor, 20, strategy="allreduce", rule=rule, clip_norm=CLIP)
    workers = comm.size // (pipe * tensor)
    run.check(expected(rule, workers, 20, CLIP))
    unclipped = expected(rule, workers, 20, 0.0)
    assert any(not np.array_equal(run.params[name], value) for name, value in run.wanted(unclipped).items())


@pytest.mark.ranks(4)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("pipe", "tensor"), [(2, 1), (1, 2)])
def test_each_piece_has_a_server_of_its_own(comm, rule, pipe, tensor):
    run = Run(comm, pipe, tensor, 20, strategy="sync", servers=1, rule=rule, clip_norm=CLIP)
    run.check(expected(rule, 1, 20, CLIP))


@pytest.mark.ranks(4)
@pytest.mark.parametrize("options", [{"strategy": "async"}, {"strategy": "hogwild"}, {"strategy": "averaging"}])
def test_pieces_train_with_other_strategies(comm, options):
    run = Run(comm, 2, 1, 20, **options)
    assert all(np.isfinite(value).all() for value in run.params.values())


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"strategy": "async", "clip_norm": 1.0},
            ["clip_norm: with strategy async", "no common norm", "sync, allreduce"],
        ),
        ({"strategy": "hogwild", "checkpoint_dir": "x"}, ["checkpoint_dir: with strategy hogwild", "different steps"]),
        ({"strategy": "easgd", "easgd_order": "async", "checkpoint_dir": "x"}, ["checkpoint_dir: with strategy easgd"]),
        ({"strategy": "sync", "record": "x"}, ["record, replay: a model in pieces"]),
        ({"strategy": "allreduce", "on_nan": "skip"}, ["on_nan=skip"]),
    ],
)
def test_what_pieces_cannot_do_is_refused_on_all_ranks(comm, options, words, tmp_path):
    options = {name: tmp_path / value if value == "x" else value for name, value in options.items()}
    same_error(comm, lambda: Run(comm, 2, 1, 1, **options), UsageError, *words)
    assert not list(tmp_path.iterdir())


@pytest.mark.ranks(2)
def test_ranks_that_pass_different_options_are_told_across_pieces(comm):
    options = {"strategy": "allreduce", "rule": ["sgd", "adam"][comm.rank]}
    same_error(comm, lambda: Run(comm, 2, 1, 1, **options), ContractError, "same rule")


class Buffered:
    """A model of which only the buffers matter."""

    def __init__(self, signature):
        self.signature = signature


@pytest.mark.ranks(4)
def test_other_buffers_of_the_same_part_are_found(comm):
    with ProcessMesh(comm, pipe=2) as mesh:
        stage, copy = mesh.coordinates["pipe"], mesh.coordinates["data"]
        whole = Layout([("a", (3,)), ("b", (4,))])
        mine = Layout([[("a", (3,))], [("b", (4,))]][stage])
        part = ModelPart(mesh.world, mesh.replica, coordinates={"pipe": stage}, layout=mine, whole=whole)
        for model in (None, Buffered(f"of stage {stage}")):  # stages have other ones
            assert in_pieces.everyone(mesh.data, part, model) == (mesh.world, None)
        _, found = in_pieces.everyone(mesh.data, part, Buffered("ab"[stage == copy == 1]))
        assert (found is None) == (stage == 0)
        assert found is None or "same model" in found
