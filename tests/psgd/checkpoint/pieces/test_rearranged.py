"""Runs of a model in pieces that are saved, and resumed in other pieces: exact, complete, or refused."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from harness.oracle import same_error
from harness.pieces import SAMPLES, WHOLE, Run, expected, first_values, whole_gradient

import psgd
from psgd.checkpoint import folder, shards, vectors
from psgd.checkpoint.manifest import Manifest
from psgd.checkpoint.pieces.rearranged import Rearranged, for_run, joined
from psgd.kernels.errors import CheckpointError, UsageError
from psgd.nn.layout import Layout

MESHES = [(4, 1), (2, 2), (1, 4), (2, 1), (1, 2), (1, 1)]
PAIRS = [*itertools.permutations(MESHES[:3], 2), ((2, 1), (1, 2)), ((1, 2), (2, 1)), ((2, 1), (2, 1))]


def saved(comm, mesh, tmp_path, steps, **options):
    made = {"strategy": "allreduce", "rule": "adam", "checkpoint_dir": tmp_path, "checkpoint_every": 5} | options
    return Run(comm, *mesh, steps, **made)


@pytest.mark.ranks(4)
@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_a_run_goes_on_in_other_pieces_with_the_bits_of_one_never_cut(comm, before, after, tmp_path):
    saved(comm, before, tmp_path, 10)
    run = saved(comm, after, tmp_path, 20, resume=True)
    assert run.began == 10
    run.check(expected("adam", comm.size // (after[0] * after[1]), 20, 0.0))


@pytest.mark.ranks(4)
def test_clipping_goes_on_exactly_where_only_the_pipeline_is_cut_otherwise(comm, tmp_path):
    workers = comm.size // 2
    saved(comm, (2, 1), tmp_path, 10, clip_norm=1.5)
    half = comm.Split(0 if comm.rank < workers else 1, comm.rank)
    if comm.rank < workers:
        saved(half, (1, 1), tmp_path, 20, clip_norm=1.5, resume=True).check(expected("adam", workers, 20, 1.5))
    comm.Barrier()
    half.Free()


@pytest.mark.ranks(4)
@pytest.mark.parametrize(("before", "after"), [((2, 1), (1, 2)), ((1, 2), (2, 1)), ((2, 1), (2, 1))])
def test_servers_resume_in_other_pieces(comm, before, after, tmp_path):
    options = {"strategy": "sync", "servers": 1}
    saved(comm, before, tmp_path, 10, **options)
    saved(comm, after, tmp_path, 20, resume=True, **options).check(expected("adam", 1, 20, 0.0))


def in_one(comm, tmp_path, steps, **options):
    """The same run on ranks that have the whole model."""
    w = np.zeros(WHOLE.size, np.float32)
    for name, view in WHOLE.views(w).items():
        view[...] = first_values(name)
    more = {"rule": "adam", "checkpoint_dir": tmp_path, "checkpoint_every": 5, "layout": WHOLE, "strategy": "allreduce"}
    with psgd.connect(comm, w, lr=lambda samples: 0.05, **more | options) as ps:
        for clock in range(ps.clock, steps):
            ps.grads[:] = whole_gradient(ps.params, ps.worker, clock)
            ps.step(SAMPLES, 1.0)
    return WHOLE.views(w)


def weights(tmp_path):
    """Those of the newest checkpoint, by name."""
    found = joined(next(folder.complete(tmp_path, pytest.fail)))
    return WHOLE.views(vectors.weights([found.state(name) for name in found.manifest.names()]))


@pytest.mark.ranks(4)
def test_a_whole_model_becomes_pieces_and_pieces_a_whole(comm, tmp_path):
    """The number of workers stays 2: of the four ranks two wait."""
    works = comm.Split(comm.rank // 2)
    if comm.rank < 2:
        in_one(works, tmp_path, 10)
    comm.Barrier()
    run = saved(comm, (1, 2), tmp_path, 20, resume=True)
    assert run.began == 10
    run.check(expected("adam", 2, 20, 0.0))
    if comm.rank < 2:
        end = in_one(works, tmp_path, 30, resume=True)
        for name, value in expected("adam", 2, 30, 0.0).items():
            np.testing.assert_array_equal(end[name], value)
    comm.Barrier()
    works.Free()


@pytest.mark.ranks(4)
def test_all_pieces_make_one_checkpoint_whose_weights_anyone_can_read(comm, tmp_path):
    run = saved(comm, (2, 2), tmp_path, 10)
    paths = folder.folders(tmp_path)
    assert [path.name for path in paths] == ["step-000000010", "step-000000005"]
    manifest = folder.open_checkpoint(paths[0]).manifest
    assert manifest.names() == [f"{piece}worker-0" for piece in run.part.pieces]
    assert manifest.pieces == run.part.pieces and manifest.layout == WHOLE
    run.check(weights(tmp_path))


@pytest.mark.ranks(4)
def test_without_one_pieces_shard_there_is_no_checkpoint(comm, tmp_path):
    saved(comm, (2, 2), tmp_path, 10)
    if comm.rank == 0:
        (tmp_path / "step-000000010" / "pipe1tensor0worker-0.safetensors").unlink()
    comm.Barrier()
    run = saved(comm, (2, 1), tmp_path, 5, resume=True)
    assert run.connection.resumed_from.manifest.step == 5


@pytest.mark.ranks(4)
def test_pieces_of_different_steps_are_refused(comm, tmp_path):
    """As where somebody has put shards of two checkpoints together and made the checksums fit."""
    saved(comm, (2, 2), tmp_path, 10)
    comm.Barrier()
    found = folder.open_checkpoint(tmp_path / "step-000000010")
    old = folder.open_checkpoint(tmp_path / "step-000000005")
    mixed = Rearranged.onto(found, WHOLE)
    name = "pipe1tensor1worker-0"
    if comm.rank == 0:
        (old.path / f"{name}.safetensors").replace(found.path / f"{name}.safetensors")
    comm.Barrier()
    shards = (*(each for each in found.manifest.shards if each.name != name), old.manifest.shard(name))
    mixed.source = replace(found.manifest, shards=shards)
    with pytest.raises(CheckpointError, match=r"version is 10 in pipe0tensor0worker-0 and 5 in pipe1tensor1worker-0"):
        mixed.state("worker-0")


@pytest.mark.ranks(4)
def test_another_model_and_compressed_runs_are_refused(comm, tmp_path):
    options = {"rule": "momentum", "compress": "onebit"}
    saved(comm, (2, 1), tmp_path, 10, **options)
    assert saved(comm, (2, 1), tmp_path, 15, resume=True, **options).began == 10
    again = lambda mesh: saved(comm, mesh, tmp_path, 20, resume=True, **options)  # noqa: E731
    same_error(comm, lambda: again((1, 2)), UsageError, "saved with compress", "same mesh and the same cuts")


@pytest.mark.ranks(4)
@pytest.mark.parametrize("asked_by", [0, 3])
def test_a_request_of_one_rank_is_one_of_all_pieces_at_the_same_step(comm, asked_by, tmp_path):
    class Asking(Run):
        def before_step(self, ps, clock):
            if clock == 7 and comm.rank == asked_by:
                ps.save(stop=True)

    run = Asking(comm, 2, 2, 20, strategy="allreduce", rule="adam", checkpoint_dir=tmp_path)
    assert run.connection.leaving
    assert [path.name for path in folder.folders(tmp_path)] == ["step-000000008"]
    saved(comm, (4, 1), tmp_path, 20, resume=True).check(expected("adam", 1, 20, 0.0))


@pytest.mark.ranks(6)
@pytest.mark.parametrize("asked_by", [2, 5])
@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "sync", "servers": 1, "rule": "adam"},
        {"strategy": "averaging", "period": 4, "rule": "momentum"},
        {"strategy": "easgd", "period": 4, "rho": 1.0},
        {"strategy": "allreduce", "accumulate": 3, "rule": "nesterov"},
    ],
    ids=lambda options: options["strategy"],
)
def test_a_request_cuts_every_strategy_at_one_step_of_all_pieces(comm, asked_by, options, tmp_path):
    class Asking(Run):
        def before_step(self, ps, clock):
            if clock == 6 and comm.rank == asked_by and not ps.resumed_from:
                ps.save(stop=True)

    first = Asking(comm, 2, 1, 20, checkpoint_dir=tmp_path, **options)
    assert first.connection.leaving
    assert len(folder.folders(tmp_path)) == 1
    resumed = Asking(comm, 1, 2, 20, checkpoint_dir=tmp_path, resume=True, **options)
    assert resumed.connection.is_server or resumed.began >= 6
    half = comm.Split(comm.rank // 3)
    if comm.rank < 3:
        whole = Run(half, 1, 1, 20, **options).params
    half.Free()
    resumed.check(comm.bcast(whole if comm.rank == 0 else None))


@pytest.mark.parametrize("shared", [True, False])
def test_workers_that_share_vectors_read_another_layout_by_names(tmp_path, shared):
    """A vector of the same size whose parameters lie in another order."""
    saved, layout = Layout([("a", (3,)), ("b", (5, 2))], align=1), Layout([("b", (5, 2)), ("a", (3,))], align=1)
    vector = np.arange(13.0)
    sharing = {"worker-0": [range(2), range(6, 13)], "worker-1": [range(2, 6)]}
    cut = sharing if shared else {"worker-0": None}
    files = []
    for name, ranges in cut.items():
        own = vector if ranges is None else np.concatenate([vector[each.start : each.stop] for each in ranges])
        files.append(shards.write(tmp_path, name, {"params": own}, "{}", ranges, 13 if ranges else 0))
    found = folder.Checkpoint(tmp_path, Manifest(1, 1, layout=saved, shards=tuple(files)))
    expected = np.concatenate([vector[3:], vector[:3]])
    tensors = for_run(found, None, layout, shares=True).state("worker-0").tensors
    np.testing.assert_array_equal(tensors["params"], expected)
    assert tensors.part("params", [range(1, 3), range(9, 12)]).tolist() == [*expected[1:3], *expected[9:12]]
    for same in (saved, None):
        tensors = for_run(found, None, same, shares=True).state("worker-0").tensors
        np.testing.assert_array_equal(tensors["params"], vector)
        assert tensors.part("params", [range(5, 8)]).tolist() == [5, 6, 7]
