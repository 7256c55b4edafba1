"""Checkpoints of every strategy, compressed or not, resumed by other numbers of ranks: nothing is lost in silence."""

import contextlib
import io

import numpy as np
import pytest
from mpi4py import MPI

import psgd
from psgd.checkpoint import vectors
from psgd.checkpoint.folder import folders, open_checkpoint
from psgd.checkpoint.resume import States

N = 64


def served(strategy, **more):
    return {"strategy": strategy, "rule": "momentum", **more}


def topk(strategy, **more):
    return served(strategy, compress="topk", density=0.1, **more)


CASES = [
    *(served("sync"), served("async"), served("softsync", softsync=1), served("ssp", staleness=1)),
    *(topk("sync"), topk("async"), topk("softsync", softsync=1), topk("ssp", staleness=1)),
    *(served("sync", compress="threshold"), served("async", compress="onebit")),
    *(served("allreduce"), topk("allreduce"), served("allreduce", compress="onebit")),
    *(served("averaging", period=1), served("averaging", period=1, average_momentum=False)),
    served("averaging", period=1, outer_momentum=0.5),
    *(served("easgd", period=1, easgd_order=order) for order in ("sync", "round-robin", "async", "hogwild")),
    *(served("hogwild"), served("decentralized"), topk("decentralized"), served("decentralized", compress="none")),
    served("decentralized", peers="pairs"),
]
WITH_SERVERS = ("sync", "async", "softsync", "ssp")


def train(comm, directory, options, steps, **more):
    """A run of so many steps of each worker, saved and stopped at its end; where it began, and its connection."""
    with psgd.connect(comm, np.linspace(-1, 1, N), lr=0.01, checkpoint_dir=directory, **options, **more) as ps:
        began = ps.evaluated_params.copy(), ps._client
        for step in range(steps):
            if ps.worker == 0 and step == steps - 1:
                ps.save(stop=True)
            ps.grads[:] = ps.params * (1 + ps.worker)
            ps.step(4, 1.0)
            if ps.stop:
                break
        return began
    return None


def look(directory):
    """The newest checkpoint's weights, and its states."""
    found = open_checkpoint(folders(directory)[0])
    states = list(States(found))
    return vectors.weights(states), states


@pytest.mark.ranks(3, timeout=120)
@pytest.mark.parametrize("options", CASES, ids=lambda each: "-".join(map(str, each.values())))
def test_by_fewer_and_by_one_and_back(comm, options, tmp_path):
    servers = {"servers": 1} if options["strategy"] in WITH_SERVERS else {}
    train(comm, tmp_path / "three", options, 3, **servers)
    comm.Barrier()
    weights, states = look(tmp_path / "three")
    two = comm.Split(comm.rank // 2)
    if comm.rank < 2:
        began = train(two, tmp_path / "three", options, 0, resume=True, **servers)
        assert began is None or np.array_equal(began[0], weights)
    comm.Barrier()
    if comm.rank == 0:
        lines = io.StringIO()
        with contextlib.redirect_stderr(lines):
            began, _ = train(MPI.COMM_SELF, tmp_path / "three", options, 0, resume=True)
        said = lines.getvalue()
        left = [state.tensors["codec.residual"] for state in states if "codec.residual" in state.tensors]
        np.testing.assert_allclose(began, weights + sum(left), rtol=0, atol=1e-15)
        assert ("residuals: " in said) == any(name.endswith("residual") for s in states for name in s.tensors)
        assert "momentum" in said or "state" in said or options["strategy"] in (*WITH_SERVERS, "averaging")
    comm.Barrier()
    options = {name: value for name, value in options.items() if name not in ("compress", "density")}
    if comm.rank == 0:  # which sends nothing, so there is nothing to compress
        train(MPI.COMM_SELF, tmp_path / "one", options, 3)
    comm.Barrier()
    weights, states = look(tmp_path / "one")
    assert len(states) == 1
    for ranks in [two, comm] if comm.rank < 2 else [comm]:
        began = train(ranks, tmp_path / "one", options, 0, resume=True, **servers)
        assert began is None or np.array_equal(began[0], weights)
    two.Free()
