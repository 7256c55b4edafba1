"""Sharded runs that are saved and resumed on other ranks, in other stages, in other pieces or without sharding."""

from unittest import mock

import numpy as np
import pytest
from click.testing import CliRunner
from harness.oracle import same_error
from harness.pieces import Run, expected
from harness.sharded_runs import mlp, run, tied

from psgd.checkpoint import folder, manifest, shards, vectors
from psgd.checkpoint.pieces.own_ranges import OwnRanges
from psgd.checkpoint.pieces.rearranged import joined
from psgd.checkpoint.state import State
from psgd.kernels.errors import AgreedUsageError, CheckpointError
from psgd.launch.checkpoint import checkpoint
from psgd.parallel.sharded import units

HALF, END = 6, 12
OPTIONS = {"clip_norm": 0.5, "delays": False}


def saved(comm, make, stage, path, **options):
    """The first half, with a checkpoint at its end."""
    options = {"checkpoint_dir": path, "checkpoint_every": HALF, **OPTIONS} | options
    with mock.patch.object(units, "SMALLEST_BYTES", 64):  # each layer is a unit, however small
        found = run(comm, make(), stage, steps=HALF, **options)
    comm.Barrier()  # rank 0 has published it
    return found


def resumed(comm, make, stage, path, **options):
    """The second half, in larger units."""
    options = {"checkpoint_dir": path, "resume": True, **OPTIONS} | options
    with mock.patch.object(units, "SMALLEST_BYTES", 2000):
        return run(comm, make(), stage, steps=END, first=HALF, **options)


def first_ranks(comm, count, work):
    """`work` on the first ranks alone; None on the others."""
    some = comm.Split(comm.rank >= count, comm.rank)
    found = work(some) if comm.rank < count else None
    some.Free()
    comm.Barrier()
    return found


def same(found, wanted):
    if wanted is not None:
        assert found.losses == wanted.losses
        np.testing.assert_array_equal(found.params, wanted.params)


@pytest.mark.ranks(3, timeout=200)
def test_a_resumed_run_has_the_bits_of_one_that_was_not_interrupted(comm, tmp_path):
    every = ((1, 1), (2, 2), (3, 3), (1, 3), (3, 2), (2, 0), (0, 3), (0, 1))
    for make, stages in ((lambda: mlp(7), every), (tied, ((3, 3), (3, 0)))):
        whole = run(comm, make(), 0, steps=END, **OPTIONS)
        unclipped = run(comm, make(), 0, steps=END, delays=False)
        assert not np.array_equal(whole.params, unclipped.params), "else clipping is not tested"
        for before, after in stages:
            path = tmp_path / f"{make().layout.size}-{before}-{after}"
            saved(comm, make, before, path)
            found = resumed(comm, make, after, path)
            assert found.losses == whole.losses[HALF:], (before, after)
            np.testing.assert_array_equal(found.params, whole.params)


@pytest.mark.ranks(3, timeout=200)
def test_accumulated_steps_and_workers_that_had_finished(comm, tmp_path):
    """Worker 0 is done before the checkpoint of the second case, and saves its part all the same."""
    for number, options in enumerate(({"accumulate": 2, "checkpoint_every": 3}, {"uneven": 2, "checkpoint_every": 7})):
        kept = {"checkpoint_every": options.pop("checkpoint_every"), **options}

        def through(before, after, path, kept=kept, options=options):
            saved(comm, lambda: mlp(15), before, path, **kept)
            return resumed(comm, lambda: mlp(15), after, path, **options)

        for before, after in ((1, 3), (3, 2), (2, 0), (3, 3)):
            path = tmp_path / f"{number}-{before}-{after}"
            # Stages 2 and 3 sum by steps, 0 and 1 over steps first: the same bits as of the other stage of that kind.
            other = {0: 1, 1: 0, 2: 3, 3: 2} if "accumulate" in options else dict.fromkeys(range(4), 0)
            wanted = through(other[before], other[after], tmp_path / f"{number}-{before}-{after}-wanted")
            same(through(before, after, path), wanted)
        if comm.rank == 0:
            found = folder.newest(path).manifest
            assert (found.step, found.format) == (kept["checkpoint_every"], "psgd checkpoint 4")


@pytest.mark.ranks(4, timeout=200)
@pytest.mark.parametrize(("named", "stages"), [(True, (3,)), (False, (1, 3))])
def test_any_number_of_ranks_resumes_it_in_any_stage_and_without_sharding(comm, tmp_path, named, stages):
    """What it must come to is what `allreduce` comes to with these numbers of ranks."""
    make = tied if named else lambda: mlp(17)
    layout = {"layout": make().layout} if named else {}
    saved(comm, make, 0, tmp_path / "0", **layout)
    first_ranks(comm, 2, lambda some: saved(some, make, 0, tmp_path / "two", **layout))
    wanted = {
        count: first_ranks(comm, count, lambda some: resumed(some, make, 0, tmp_path / "0", **layout))
        for count in (1, 2, 3)
    }
    for before in stages:
        path = tmp_path / str(before)
        saved(comm, make, before, path, **layout)
        for after, count in ((0, 1), (0, 2), (1, 2), (2, 3), (3, 3), (3, 2)):
            same(
                first_ranks(comm, count, lambda some, s=after, p=path: resumed(some, make, s, p, **layout)),
                wanted[count],
            )
    same(resumed(comm, make, 3, tmp_path / "two", **layout), resumed(comm, make, 0, tmp_path / "two", **layout))


@pytest.mark.ranks(4, timeout=200)
def test_pieces_of_a_model_are_saved_in_ranges_and_resumed_in_other_pieces(comm, tmp_path):
    options = {"strategy": "allreduce", "rule": "adam", "checkpoint_every": 5, "clip_norm": 1.5}
    wanted = expected("adam", 2, 10, 1.5)
    cases = [((2, 1), 1, (1, 2), 1), ((1, 2), 1, (2, 1), 0), ((2, 1), 0, (1, 2), 1), ((2, 1), 1, (2, 1), 1)]
    for number, (before, shard, after, then) in enumerate(cases):
        path = tmp_path / str(number)
        Run(comm, *before, 5, checkpoint_dir=path, shard=shard, **options)
        again = Run(comm, *after, 10, checkpoint_dir=path, shard=then, resume=True, **options)
        assert again.began == 5
        again.check(wanted)
    if comm.rank == 0:
        found = next(folder.complete(tmp_path / "0", pytest.fail))
        assert found.manifest.format == "psgd checkpoint 4"
        assert sorted(found.manifest.names()) == sorted(
            f"pipe0tensor{place}worker-{worker}" for place in (0, 1) for worker in (0, 1)
        )
        again = joined(found)
        final = vectors.weights([again.state(name) for name in again.manifest.names()])
        for name, view in found.manifest.layout.views(final).items():
            np.testing.assert_array_equal(view, wanted[name])
    comm.Barrier()


@pytest.mark.ranks(2)
def test_each_rank_writes_and_reads_its_own_part_alone(comm, tmp_path):
    before = saved(comm, lambda: mlp(17), 3, tmp_path)
    own = before.slices.size
    found = next(folder.complete(tmp_path, pytest.fail))
    shard = found.manifest.shard(f"worker-{comm.rank}")
    assert (shard.of, sum(map(len, shard.ranges))) == (before.params.size, own)
    tensors = shards.outline(found.path, shard).tensors
    vectors_saved = ("params", "state0", "state1")
    assert {name: tensor.shape for name, tensor in tensors.items()} == dict.fromkeys(vectors_saved, (own,))
    with (
        mock.patch.object(shards, "elements", wraps=shards.elements) as elements,
        mock.patch.object(shards, "read", wraps=shards.read) as whole,
    ):
        again = resumed(comm, lambda: mlp(17), 3, tmp_path)
    assert len(before.slices.units) > len(again.slices.units) > 1
    assert not whole.called
    assert {call.args[1].name for call in elements.mock_calls} == {"worker-0", "worker-1"}, "units are others"
    assert sum(call.args[4] - call.args[3] for call in elements.mock_calls) == 3 * again.slices.size
    comm.Barrier()


@pytest.mark.ranks(2)
def test_what_does_not_fit_is_one_error_on_all_ranks(comm, tmp_path):
    saved(comm, lambda: mlp(17), 3, tmp_path)
    if comm.rank == 0:  # as if half of it had never been there
        found = folder.newest(tmp_path)
        manifest.write(found.path, found.manifest, found.manifest.shards[:1])
    comm.Barrier()
    for stage in (0, 1):
        same_error(comm, lambda s=stage: resumed(comm, lambda: mlp(17), s, tmp_path), AgreedUsageError, "elements")


@pytest.mark.ranks(3)
def test_show_and_export_know_it(comm, tmp_path):
    found = saved(comm, tied, 3, tmp_path / "run", layout=tied().layout)
    if comm.rank == 0:
        shown = CliRunner().invoke(checkpoint, ["show", str(tmp_path / "run")], standalone_mode=False)
        assert f"1/3 of {found.params.size:,} elements" in shown.output
        CliRunner().invoke(
            checkpoint, ["export", str(tmp_path / "run"), "-o", str(tmp_path / "w.npz")], standalone_mode=False
        )
        weights = np.load(tmp_path / "w.npz")
        for name, view in tied().layout.views(found.params).items():
            np.testing.assert_array_equal(weights[name], view)
        assert (
            CliRunner().invoke(checkpoint, ["verify", str(tmp_path / "run")], standalone_mode=False).return_value == 0
        )
    comm.Barrier()


def test_what_a_state_has_whole_is_cut():
    """A checkpoint whose tensors are in memory, and a worker that has the whole vector."""
    ranges = [range(2), range(5, 7), range(7, 7)]
    own, whole = np.zeros(4), np.zeros(9)
    state = State({"params": np.arange(9.0), "state0": np.arange(9.0) + 10})
    item = OwnRanges({"params": whole, "state0": own}, ranges, 9)
    item.restore(None, [State(), state], 0)
    assert whole.tolist() == list(range(9))
    assert own.tolist() == [10, 11, 15, 16]
    made = State()
    item.save(made, 3)
    assert made.tensors["params"].tolist() == [0, 1, 5, 6]
    assert made.tensors["state0"] is own
    assert (made.facts["ranges"], made.facts["of"]) == ([[0, 2], [5, 7]], 9)
    whole[:] = -1
    item.restore(state, [], 1)
    assert (whole == -1).all(), "worker 0 sends it"
    with pytest.raises(CheckpointError, match="no params"):
        item.restore(State(), [State()], 0)
    with pytest.raises(CheckpointError, match="state0: expected float32 of shape"):
        OwnRanges({"state0": own.astype(np.float32)}, ranges, 9).restore(state, [], 0)
