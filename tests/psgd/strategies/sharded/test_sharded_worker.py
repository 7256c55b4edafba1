"""Sharded runs against `allreduce` on real ranks: the same bits, counted bytes, counted memory."""

import contextlib
import functools

import numpy as np
import pytest
from harness import sharded_runs
from harness.sharded_runs import batch, mlp, run, tied

from psgd.kernels.errors import DivergedError, PeerLostError
from psgd.parallel.sharded import units
from psgd.worker import gradient_watch

STAGES = (1, 2, 3)


@contextlib.contextmanager
def small_units(nbytes=64):
    """Each layer is a unit, however small."""
    before, units.SMALLEST_BYTES = units.SMALLEST_BYTES, nbytes
    try:
        yield
    finally:
        units.SMALLEST_BYTES = before


@pytest.mark.ranks(2, 3, 4, timeout=120)
def test_bits_are_those_of_allreduce(comm):
    """50 Adam steps of all stages, with delays, steps without samples, ends at different steps, ties, accumulation.

    Accumulated steps are reduced one by one in stages 2 and 3: those bits are those of a process that adds them so.
    """
    cases = [
        (lambda: mlp(7), {"clip_norm": 0.1}),
        (lambda: mlp(15), {"accumulate": 3, "uneven": 2, "clip_norm": 0.1}),
        (lambda: mlp(17).recomputed((range(2, 4),)), {"uneven": 1, "clip_norm": 0.1}),
        (tied, {"steps": 20, "clip_norm": 0.5}),
        (lambda: mlp(15), {"steps": 10, "reduction": "sum"}),
    ]
    for make, options in cases:
        with small_units():
            expected = run(comm, make(), 0, **options)
            assert np.isfinite(expected.params).all()
            for stage in STAGES:
                found = run(comm, make(), stage, **options)
                if stage > 1 and "accumulate" in options:
                    one = sharded_runs.step_by_step(comm, make(), 50, **options)
                    np.testing.assert_array_equal(found.params, one)
                    np.testing.assert_allclose(found.params, expected.params, atol=1e-4)
                    continue
                assert found.losses == expected.losses, stage
                np.testing.assert_array_equal(found.params, expected.params)


@pytest.mark.ranks(2, 3)
def test_bytes_moved_are_exactly_two_two_three_vectors(comm):
    """Each of N ranks, on average, Psi (N - 1)/N elements in each reduce-scatter and all-gather of a step."""
    for make in (lambda: mlp(15), tied):
        with small_units():
            for stage, vectors in zip(STAGES, (2, 2, 3), strict=True):
                found = run(comm, make(), stage, steps=4, delays=False)
                each = vectors * (comm.size - 1) * found.params.nbytes
                assert [comm.allreduce(n) for n in found.nbytes] == [each, 2 * each, 3 * each, 4 * each]


@pytest.mark.ranks(3)
def test_memory_is_what_the_formulas_say(comm):
    """Bytes of arrays, exactly: of the four vectors that Adam needs, those that a stage divides are own slices."""
    with small_units():
        model = mlp(17)
        largest = max(len(unit) for unit in units.of_stage(model))
        whole = 4 * model.layout.size
        for stage in (0, 1, 2, 3):
            found = run(comm, mlp(17), stage, steps=1)
            own = 0 if found.slices is None else 4 * found.slices.size
            assert found.held == {0: 4 * whole, 1: 2 * whole + 2 * own, 2: whole + 3 * own, 3: 4 * own}[stage]
            if stage:
                assert abs(own - whole / comm.size) < 4 * len(found.slices.units)
            if stage > 1:
                vectors = 4 if stage == 3 else 2  # two units of gradients, and of parameters
                assert found.exchange.buffer_bytes <= 4 * vectors * (largest + 16)


@pytest.mark.ranks(2)
def test_a_gradient_that_is_not_finite_is_told_by_the_rank_that_made_it(comm):
    """Before it is summed: the other's own part is not finite either, but what it made was."""
    said = []

    def poisoned(model, rank, step):
        x, y = batch(model, rank, step)
        if rank == 1 and step == 2:
            x[:1] = np.nan
        return x, y

    with (
        small_units(),
        np.errstate(all="ignore"),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(gradient_watch, "say", said.append)
        patch.setattr(sharded_runs, "batch", poisoned)
        run(comm, mlp(7), 3, steps=3, delays=False)
    if comm.rank == 0:
        assert said == []
    else:
        assert len(said) == 1
        assert said[0].startswith("warning: rank 1 (worker 1), step 3: the gradient is not finite")


@pytest.mark.ranks(2, timeout=120)
def test_an_update_with_a_gradient_that_is_not_finite_is_omitted_by_all(comm):
    """As if nobody had had samples for it; with `stop` all end, and the message names who has seen it."""

    def poisoned(model, rank, step):
        x, y = batch(model, rank, step)
        if rank == 1 and step == 3:
            x[:1] = np.inf
        return x, y

    def without(steps, model, rank, step):
        return batch(model, 0, 0) if step in steps else batch(model, rank, step)

    said = []
    with small_units(), np.errstate(all="ignore"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradient_watch, "say", said.append)
        for accumulate, those in ((1, (3,)), (2, (2, 3))):
            options = {"steps": 8, "clip_norm": 0.1, "accumulate": accumulate}
            found = []
            for stage in (2, 3):
                patch.setattr(sharded_runs, "batch", functools.partial(without, those))
                found.append(run(comm, mlp(7), stage, **options).params)
                patch.setattr(sharded_runs, "batch", poisoned)
                found.append(run(comm, mlp(7), stage, on_nan="skip", **options).params)
            assert np.isfinite(found[0]).all()
            for other in found[1:]:
                np.testing.assert_array_equal(other, found[0])
        assert len(said) == (4 if comm.rank else 0)
        for stage in (2, 3):
            with pytest.raises(DivergedError, match=r"rank 1 \(worker 1\), step 4: the gradient is not finite"):
                run(comm, mlp(7), stage, steps=8, on_nan="stop")


@pytest.mark.ranks(3)
@pytest.mark.parametrize("stage", STAGES)
def test_a_worker_that_fails_in_a_pass_ends_the_others(comm, stage):
    """They wait for a unit that never comes."""

    def batches(model, rank, step):
        if rank == 1 and step == 3:
            raise ZeroDivisionError
        return batch(model, rank, step)

    expected = ZeroDivisionError if comm.rank == 1 else PeerLostError
    with small_units(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharded_runs, "batch", batches)
        with pytest.raises(expected):
            run(comm, mlp(7), stage, steps=6, delays=False)
