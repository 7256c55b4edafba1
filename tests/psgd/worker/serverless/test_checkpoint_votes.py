"""Checkpoints of strategies whose workers keep pace: a resumed run ends with the bits of the uninterrupted one."""

import numpy as np
import pytest
from harness.resuming import Run, kept

from psgd.checkpoint.state import State
from psgd.worker.serverless.checkpoint_votes import CheckpointVotes

N = 1031

LOCKSTEP = [
    {"strategy": "allreduce", "rule": "adam", "clip_norm": 3.0},
    {"strategy": "allreduce", "rule": "momentum", "accumulate": 3},
    {"strategy": "averaging", "rule": "momentum", "period": 4},
    {"strategy": "averaging", "rule": "momentum", "period": 3, "outer_lr": 0.7, "outer_momentum": 0.9},
    {"strategy": "averaging", "rule": "adam", "period": 3, "average_momentum": False},
    {"strategy": "easgd", "rule": "momentum", "period": 3},
    {"strategy": "easgd", "rule": "adam", "period": 2, "easgd_order": "round-robin"},
    {"strategy": "allreduce", "rule": "momentum", "compress": "threshold", "density": 0.05, "compress_sync": 7},
    {"strategy": "allreduce", "rule": "momentum", "compress": "topk", "density": 0.05},
    {"strategy": "allreduce", "rule": "momentum", "compress": "onebit", "accumulate": 2},
]


def test_wishes_and_intervals():
    cuts = CheckpointVotes()
    cuts.decide(0, 10)
    assert (cuts.reached, cuts.stopping, cuts.step) == (False, False, 0)
    cuts.every = 8
    found = []
    for steps in (12, 16, 16, 23, 25, 40):
        cuts.decide(0, steps)
        found.append(cuts.reached and cuts.step)
    assert found == [False, 16, False, False, 25, 40]
    cuts.decide(1, 40)  # a request at the same step: a name of its own
    assert (cuts.reached, cuts.step, cuts.stopping) == (True, 41, False)
    cuts.ask(True)
    cuts.ask(False)
    assert (cuts.take_request(), cuts.take_request()) == (2, 0)
    cuts.decide(2, 44)
    assert (cuts.reached, cuts.step, cuts.stopping) == (True, 44, True)
    late = CheckpointVotes()
    late.catch_up(cuts.newest)
    assert (late.reached, late.step, late.stopping, late.decided_at) == (True, 44, True, 44)
    again = CheckpointVotes()
    saved = State()
    cuts.save(saved, 0)
    again.restore(saved, [], 0)
    again.every = 8
    again.decide(0, 47)
    assert not again.reached
    again.decide(0, 48)
    assert (again.reached, again.step) == (True, 48)


def steps_of(worker):
    return 40 - 9 * worker


@pytest.mark.ranks(3)
@pytest.mark.parametrize("options", LOCKSTEP)
def test_it_goes_on_with_the_same_bits(comm, options):
    """Workers end at different steps, so at some cuts one has ended: it is saved all the same."""
    every = 13 // options.get("accumulate", 1)
    plain = Run(comm, N, steps_of, options)
    run = Run(comm, N, steps_of, options, every=every)
    np.testing.assert_array_equal(run.params, plain.params)  # cuts change nothing
    names = [name for name, *_ in run.cuts]
    assert len(names) >= 2 and names == sorted(set(names)) and names == comm.bcast(names)
    for name, clock, state in (run.cuts[0], run.cuts[-1]):
        others = comm.allgather(state)
        if "easgd_order" not in options:  # round-robin: each as it was at its turn
            assert all(each.facts["version"] == state.facts["version"] for each in others)
        again = Run(comm, N, steps_of, options, saved=(clock, state), others=others, every=every)
        assert again.lines == [] and [each[0] for each in again.cuts] == [each for each in names if each > name]
        np.testing.assert_array_equal(again.params, run.params)
        assert (again.client.version, again.clock) == (run.client.version, steps_of(comm.rank))
        if comm.rank == 0:
            for counter in ("samples", "steps", "pushes", "staleness", "loss"):
                assert getattr(again.metrics, counter) == getattr(run.metrics, counter), counter
    _every_tensor_counts(comm, options, run)


def _every_tensor_counts(comm, options, run):
    """A run that goes on without one of them ends elsewhere, or counts otherwise."""
    _, clock, state = run.cuts[0]
    names = set().union(*comm.allgather(set(state.tensors))) - {"codec.step"}  # that tells on longer vectors
    for lost in sorted(names):
        part = kept(state)
        if lost in part.tensors:
            part.tensors[lost].fill(0)
        again = Run(comm, N, steps_of, options, saved=(clock, part), others=comm.allgather(part))
        same = [np.array_equal(again.params, run.params), again.metrics.pushes == run.metrics.pushes]
        assert comm.bcast(same) != [True, True], lost


@pytest.mark.ranks(3)
@pytest.mark.parametrize("options", [LOCKSTEP[0], LOCKSTEP[2], *LOCKSTEP[5:8]])
def test_wishes_of_all_make_one_cut_after_which_all_stop(comm, options):
    """All end with what was saved, and a run that goes on from there with the bits of one that never stopped."""
    run = Run(comm, N, lambda worker: 40, options, ask={20: True})
    ((_, clock, state),) = run.cuts
    assert run.client.checkpoint.stopping and run.clock == clock < 30
    whole = "centre" if options["strategy"] == "easgd" else "params"
    owner = comm.size - 1 if "easgd_order" in options else 0
    weights = comm.bcast(state.tensors.get(whole), owner)
    np.testing.assert_array_equal(run.params, weights)
    again = Run(comm, N, lambda worker: 40, options, saved=(clock, state))
    np.testing.assert_array_equal(again.params, Run(comm, N, lambda worker: 40, options).params)
