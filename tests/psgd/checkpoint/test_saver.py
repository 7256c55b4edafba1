"""Checkpoints on real ranks with servers: a run that goes on from one ends with the bits of the one never cut."""

import time

import numpy as np
import pytest
from harness.fused import multiply_add
from mpi4py import MPI

import psgd
from psgd.checkpoint import folder, vectors
from psgd.checkpoint.folder import folders, open_checkpoint
from psgd.checkpoint.requests import CheckpointRequest
from psgd.checkpoint.resume import Plan, States, prepare
from psgd.kernels.errors import CheckpointError, ContractError, UsageError
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim import schedules
from psgd.worker.local import LocalWorker

N = 1500
STEPS = 24
CASES = [
    ("sync", 1, {"rule": "adam", "clip_norm": 3.0}),
    ("sync", 2, {"rule": "momentum", "weight_decay": 0.01}),
    ("sync", 2, {"rule": "momentum", "compress": "threshold", "density": 0.02, "compress_sync": 7}),
    ("sync", 1, {"rule": "sgd", "compress": "onebit", "clip_norm": 3.0}),
    ("async", 1, {"rule": "momentum"}),
    ("async", 2, {"rule": "momentum", "compress": "topk", "density": 0.05}),
    ("softsync", 2, {"rule": "nesterov", "softsync": 2, "staleness_lr": "inverse"}),
    ("ssp", 2, {"rule": "adam", "staleness": 1}),
    ("ssp", 1, {"rule": "momentum", "staleness": 1, "compress": "threshold", "density": 0.02}),
]


def gradient(params, worker, push):
    ramp = np.arange(1, params.size + 1) / params.size
    return params * ramp + np.sin(ramp * (worker + 1) * push)


def run(comm, strategy, servers, steps=STEPS, naps=False, every=10, **options):
    """One run; returns this worker's final weights (a server's part on a server) and the connection."""
    metrics = RunMetrics(comm.size - servers)
    params = np.cos(np.arange(N)) if comm.rank == servers else np.zeros(N)
    rng = np.random.default_rng(time.time_ns() + comm.rank)
    rate = schedules.cosine(0.05, 400)
    if "checkpoint_dir" in options:
        options["checkpoint_every"] = every
    with psgd.connect(comm, params, strategy=strategy, servers=servers, lr=rate, metrics=metrics, **options) as ps:
        if 0 < ps.clock < steps + ps.worker:  # one that was at its end has saved nothing
            assert ps.extra["pushed"] == ps.clock and ps.extra["trail"].tolist() == [ps.worker, ps.clock]
        for push in range(ps.clock + 1, steps + ps.worker + 1):
            ps.extra["pushed"] = push
            ps.extra["trail"] = np.array([ps.worker, push])
            ps.grads[:] = gradient(ps.params, ps.worker, push)
            if naps:
                time.sleep(float(rng.exponential(4e-4)))
            ps.step((push + ps.worker) % 5, loss=1.0)
    return params.copy(), ps


@pytest.mark.ranks(5, timeout=120)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_resumed_is_uncut(comm, case, tmp_path):
    strategy, servers, options = CASES[case]
    order = {} if strategy == "sync" else {"record": tmp_path / "order"}
    whole, ps = run(comm, strategy, servers, naps=bool(order), checkpoint_dir=tmp_path / "a", **options, **order)
    if strategy == "sync":  # to save changes no bit
        assert np.array_equal(run(comm, strategy, servers, **options)[0], whole)
    else:
        order = {"replay": tmp_path / "order"}
    found = [open_checkpoint(path).manifest.step for path in folders(tmp_path / "a")] if comm.rank == 0 else []
    if comm.rank == 0:
        assert found == [20, 10] if strategy == "sync" else len(found) == 3
    again, ps2 = run(comm, strategy, servers, checkpoint_dir=tmp_path / "a", resume=True, **options, **order)
    assert np.array_equal(again, whole), np.abs(again - whole).max()
    if comm.rank == 0:
        assert ps2.resumed_from.manifest.step == found[0]
        for name in ("staleness", "pushes", "samples", "steps", "dropped"):
            assert getattr(ps2.metrics, name) == getattr(ps.metrics, name), name


@pytest.mark.ranks(5)
def test_other_ranks(comm, tmp_path):
    """Another number of servers changes no bit; another number of workers goes on from the same weights and state."""
    options = {"rule": "momentum", "checkpoint_dir": tmp_path / "a"}
    whole, _ = run(comm, "sync", 2, **options)
    part = comm.Split(0 if comm.rank else 1)
    if comm.rank:  # 1 server, 3 workers
        again, _ = run(part, "sync", 1, resume=True, **options)
        assert part.rank == 0 or np.array_equal(again, whole)
    else:  # 1 rank
        time.sleep(1)
    comm.Barrier()
    path = folders(tmp_path / "a")[0]
    states = States(open_checkpoint(path))
    expected = vectors.weights(list(states))
    alone = comm.Split(comm.rank)
    for ranks, servers in ((comm, 1), (alone, 0)) if comm.rank == 0 else ((comm, 1),):
        start = np.zeros(N)
        with psgd.connect(ranks, start, servers=servers, resume=True, lr=0.05, **options) as ps:
            assert np.array_equal(ps.params, expected)
            assert ps.resumed_from.manifest.step == 20
            ps.grads[:] = 1.0
            ps.step()
            assert ps.version == 21
        velocity = vectors.assemble(state for state in states if vectors.is_sharded(state))["state0"]
        if servers or comm.rank == 0:
            stepped = multiply_add(-0.05, 0.9 * velocity + 1.0, expected)
            assert (servers == 1 and comm.rank == 0) or np.array_equal(start, stepped)
    part.Free()
    alone.Free()


@pytest.mark.ranks(4)
def test_residuals_of_other_workers_are_kept(comm, tmp_path):
    """Sent and left over are what was put in, though three workers are two then (case 24)."""
    options = {"compress": "threshold", "density": 0.01, "checkpoint_dir": tmp_path / "a"}
    run(comm, "sync", 1, **options)
    states = States(open_checkpoint(folders(tmp_path / "a")[0])) if comm.rank == 0 else None
    residuals = sum(state.tensors["0.residual"] for state in states[1:]) if states else None
    residuals = comm.bcast(residuals)
    part = comm.Split(int(comm.rank == 3))
    mine = np.zeros(N)
    if comm.rank < 3:
        with psgd.connect(part, np.zeros(N), servers=1, resume=True, lr=0.05, rule="sgd", **options) as ps:
            assert ps.worker < 2  # a server leaves here
            mine = ps._client.transport.coded[0].codec.residual.copy()
    total = np.empty(N)
    comm.Allreduce(mine, total)
    np.testing.assert_allclose(total, residuals, rtol=1e-12, atol=1e-12)
    part.Free()


@pytest.mark.ranks(3)
def test_refusals(comm, tmp_path):
    options = {"checkpoint_dir": tmp_path / "a", "rule": "adam"}
    run(comm, "sync", 1, run={"seed": 1}, **options)
    for wrong, words in (
        ({}, "a run with the same options: continue that run with --resume"),
        ({"run": {"seed": 2}}, "another run: resume that run"),
        ({"resume": True, "run": {"seed": 2}}, "with seed 1, but this run has 2"),
        ({"resume": True, "run": {"seed": 1}, "rule": "sgd"}, "with rule 'adam', but this run has 'sgd'"),
        ({"checkpoint_keep": 0}, "checkpoint_keep: expected a whole number, at least 1"),
        ({"resume": True, "checkpoint_dir": None}, "resume: expected checkpoint_dir"),
        ({"checkpoint_dir": 3}, "checkpoint_dir: expected a folder's path, got 3"),
        ({"checkpoint_evry": 3}, "did you mean checkpoint_every"),
        ({"resume": comm.rank == 1}, "the same resume, got false on .*; true on rank"),
    ):
        with pytest.raises((UsageError, ContractError), match=words):
            run(comm, "sync", 1, **options | wrong)
    prepared = Plan(tmp_path / ("b" if comm.rank < 2 else "elsewhere"))
    with pytest.raises(UsageError, match=r"rank 2 on .* cannot see .* is the directory shared"):
        prepare(comm, prepared)


@pytest.mark.ranks(3)
def test_asked_for(comm, tmp_path):
    """By one worker, and by a server's own request, each time one; to stop stops all."""
    request = CheckpointRequest()
    if comm.rank == 0:
        request.ask()
    pushed = 0
    with psgd.connect(
        comm,
        np.zeros(N),
        strategy="async",
        checkpoint_dir=tmp_path / "a",
        checkpoint_request=request,
        checkpoint_keep=9,
    ) as ps:
        while not ps.stop:
            ps.grads[:] = 1.0
            ps.step()
            pushed += 1
            assert pushed < 2000
            if ps.worker == 1 and pushed == 50:
                ps.save()
            if ps.worker == 0 and pushed == 100:
                ps.save(stop=True)
    assert ps.leaving
    if comm.rank == 0:
        assert len(folders(tmp_path / "a")) == 3 and ps.checkpoint == folders(tmp_path / "a")[0]


@pytest.mark.ranks(3)
@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("averaging", {"period": 4}),
        ("easgd", {"period": 4}),
        ("easgd", {"period": 3, "easgd_order": "round-robin"}),
        ("hogwild", {}),
        ("decentralized", {}),
    ],
)
def test_a_cut_while_some_wait_for_the_end(comm, strategy, options, tmp_path):
    """Workers make different numbers of steps: those that are done take part in the cuts that are still to come."""

    def run(resume):
        params = np.linspace(-1, 1, 50)
        given = {"checkpoint_dir": tmp_path, "checkpoint_every": 5, "resume": resume}
        with psgd.connect(comm, params, strategy=strategy, lr=0.1, **given, **options) as ps:
            for step in range(ps.clock, 12 + 9 * ps.worker):
                ps.grads[:] = ps.params * 0.1 + np.random.default_rng([ps.worker, step]).standard_normal(50)
                ps.step()
        return params

    first = run(resume=False)
    if comm.rank == 0:
        assert next(found.manifest.step for found in folder.complete(tmp_path, pytest.fail)) >= 20
    again = run(resume=True)
    if strategy in ("averaging", "easgd"):
        np.testing.assert_array_equal(again, first)


def test_damaged_checkpoints_newer_than_the_one_taken_up_are_put_aside(tmp_path):
    """Else they count as the newest, and the new ones behind them go."""
    params = np.ones(5)

    def run(steps, resume=True):
        with psgd.connect(
            MPI.COMM_SELF, params, checkpoint_dir=tmp_path, checkpoint_every=2, checkpoint_keep=2, resume=resume
        ) as ps:
            for _ in range(ps.clock, steps):
                ps.step()
            return ps.clock

    run(8, resume=False)
    shard = tmp_path / "step-000000008" / "worker-0.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\0")
    assert run(7) == 7
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [
        "step-000000006",
        "step-000000008.damaged1",
    ]
    for path in folder.folders(tmp_path):
        (path / "manifest.json").write_text("{}")
    with pytest.raises(UsageError, match=r"1 checkpoint.s., and all are damaged"):
        run(9)


def test_what_has_diverged_is_not_saved(tmp_path, capfd):
    params = np.ones(5)
    with psgd.connect(MPI.COMM_SELF, params, checkpoint_dir=tmp_path, checkpoint_every=1) as ps:
        for step in range(6):
            ps.grads[:] = np.nan if step == 3 else 0.0
            ps.extra["free"] = np.array([np.nan])
            ps.step()
    assert [found.manifest.step for found in folder.complete(tmp_path, pytest.fail)] == [3, 2, 1]
    assert capfd.readouterr().err.count("NaN or infinity") == 1


@pytest.mark.parametrize("accuracy", [np.float32(0.5), np.nan, np.inf, 1])
def test_evaluations_of_any_kind_of_number_can_be_resumed(tmp_path, accuracy):
    """What a manifest and counters can say; others were written, and then no reader took them."""
    metrics = RunMetrics(1, samples_per_epoch=2.0)

    def run(steps, **options):
        params = np.ones(3, np.float32)
        with psgd.connect(MPI.COMM_SELF, params, checkpoint_dir=tmp_path, checkpoint_every=1, **options) as ps:
            for _ in range(ps.clock, steps):
                ps.report(accuracy, np.float32(2.0))
                ps.step(3, np.float32(1.5))
            return ps

    run(2, metrics=metrics)
    assert run(2, resume=True).metrics.facts()["accuracy"] == pytest.approx(float(accuracy), nan_ok=True)
    found = open_checkpoint(folders(tmp_path)[0]).manifest
    assert found.step == 2 and found.accuracy == (float(accuracy) if np.isfinite(accuracy) else None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [(KeyError("clock"), "step-000000001: cannot be restored, was it saved by another version. KeyError: 'clock'")]
    + [(each("mine"), "step-000000001: mine") for each in (UsageError, CheckpointError, OSError)],
)
def test_whatever_restoring_raises_is_an_error_that_names_the_checkpoint(tmp_path, monkeypatch, wrong, message):
    def restore(*arguments):
        raise wrong

    with psgd.connect(MPI.COMM_SELF, np.ones(3), checkpoint_dir=tmp_path, checkpoint_every=1) as ps:
        ps.step()
    monkeypatch.setattr(LocalWorker, "restore", restore)
    connection = psgd.connect(MPI.COMM_SELF, np.ones(3), checkpoint_dir=tmp_path, resume=True)
    with pytest.raises(UsageError, match=message):
        connection.__enter__()
