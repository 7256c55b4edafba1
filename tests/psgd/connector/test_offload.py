"""`psgd.connect(offload=...)`: what it refuses, and that a single rank's steps are those without."""

import numpy as np
import pytest
from mpi4py import MPI

import psgd
from psgd.connector import offload
from psgd.kernels.errors import UsageError
from psgd.optim.host_updates import HostUpdates


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("parameters", True, 0, True), "offload: expected \"optimizer\" or None, got 'parameters'"),
        ((True, True, 0, True), 'offload: expected "optimizer" or None, got True'),
        (("optimizer", True, 1, False), "offload: the optimizer is on the servers, which are on hosts; omit it"),
        ((("optimizer", 1), True, 0, False), "offload: not with shard"),
        (("optimizer", False, 0, True), "offload: expected parameters on a GPU with it, got NumPy's"),
    ],
)
def test_refusals(arguments, message):
    wish, shard = arguments[0] if isinstance(arguments[0], tuple) else (arguments[0], 0)
    with pytest.raises(UsageError) as caught:
        offload.check({"offload": wish, "shard": shard}, *arguments[1:])
    assert str(caught.value).startswith(message)


def test_who_takes_the_steps():
    given = HostUpdates(1)

    def check(wish, *others):
        return offload.check({"offload": wish, "shard": 0}, *others)

    assert check(given, False, 0, True) is given
    assert check(given, False, 1, False) is None
    assert isinstance(check("optimizer", True, 0, True), HostUpdates)
    assert check("optimizer", True, 0, False) is None


def test_who_takes_a_lone_workers_steps():
    assert isinstance(offload.updates("sync", {}, 0, 1, 1), HostUpdates)
    assert isinstance(offload.updates("allreduce", {}, 0, 1, 0), HostUpdates)
    assert offload.updates("easgd", {}, 0, 1, 0) is None  # it has a centre
    assert offload.updates("sync", {}, 1, 1, 0) is None and offload.updates("allreduce", {}, 0, 2, 0) is None
    for strategy, servers, workers in (("easgd", 0, 1), ("sync", 1, 1), ("allreduce", 0, 3)):
        with pytest.raises(UsageError, match=rf"--offload-staleness 1: .*, got {workers} workers, {servers} servers"):
            offload.updates(strategy, {}, servers, workers, 1)


def test_a_single_ranks_steps_by_parts():
    """As `psgd train` has it: the vectors are on the host, and whoever computes tells of parts."""
    found = []
    for given in (None, HostUpdates(2)):
        params = np.linspace(-1, 1, 50)
        with psgd.connect(MPI.COMM_SELF, params, rule="adam", lr=0.1, offload=given) as ps:
            for step in range(4):
                ready = ps.overlap(3)
                assert (ready is None) == (given is None)
                ps.grads[:] = np.random.default_rng(step).normal(size=50)
                for part in (range(20, 50), range(20)) if ready is not None else ():
                    ready(part)
                ps.step(3, 0.5)
                found.append(ps.params.copy())
    np.testing.assert_array_equal(found[:4], found[4:])
    with pytest.raises(UsageError, match="expected parameters on a GPU"):
        psgd.connect(MPI.COMM_SELF, params, offload="optimizer")
