"""Modules of every kind under every strategy, against sequential simulations with autograd on tensors of their own."""

import numpy as np
import pytest
from harness import expected

import psgd
from psgd.nn.layout import Layout
from psgd.strategies import STRATEGIES

torch = pytest.importorskip("torch")
from harness.torch_cases import KINDS, loss_of, module_of  # noqa: E402

nn = torch.nn
LR, STEPS = 0.05, 4


def train(comm, kind, strategy, turns=False, **options):
    """One run: the final vector, its start, the layout; `turns` makes workers step one after the other."""
    torch.set_num_threads(1)
    model = psgd.torch.wrap(module_of(kind, comm.rank))
    connection = psgd.connect(comm, model, strategy=strategy, lr=LR, **options)
    workers = comm.Split(connection.is_server)
    with connection as ps:
        for clock in range(STEPS):
            for turn in range(ps.workers if turns else 1):
                if turns:
                    workers.Barrier()
                    if turn != ps.worker:
                        continue
                model.module.zero_grad()
                ps.overlap(6)
                loss_of(kind, model.module, ps.worker, clock).backward()
                ps.step(6)
    workers.Free()
    for name, p in model.module.named_parameters():
        assert len(set(comm.allgather(p.detach().numpy().tobytes()))) == 1, name
        if p.requires_grad:
            assert p.data_ptr() == model.layout.views(model.params)[name].ctypes.data
    assert len(set(comm.allgather(model.params.tobytes()))) == 1
    start = psgd.torch.wrap(module_of(kind, connection.servers))
    return model.params.copy(), start.params.copy(), model.layout


def gradient_for(kind, layout: Layout, first: int):
    """The gradient of one worker's step, by autograd on tensors of their own."""

    def gradient(w, worker, clock):
        module = module_of(kind, first)  # frozen parameters are the first worker's everywhere
        names = {p.name for p in layout.parameters}
        views = layout.views(w)
        with torch.no_grad():
            for name, p in module.named_parameters():
                if name in names:
                    p.copy_(torch.from_numpy(views[name].copy()))
        loss_of(kind, module, worker, clock).backward()
        result = np.zeros_like(w)
        into = layout.views(result)
        for name, p in module.named_parameters():
            if name in names and p.grad is not None:
                into[name][...] = p.grad.numpy()
        return result

    return gradient


def close(got, wanted, start):
    assert np.abs(wanted - start).max() > 1e-3, "it was trained"
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=2e-6)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", ["sync", "allreduce", "averaging", "easgd", "hogwild"])
def test_strategies_without_chance(comm, strategy, kind):
    got, start, layout = train(comm, kind, strategy, strategy == "hogwild", **expected.OPTIONS.get(strategy, {}))
    servers = int(strategy == "sync")
    gradient = gradient_for(kind, layout, servers)
    wanted = expected.without_chance(strategy, start, comm.size - servers, gradient, lr=LR, steps=STEPS, samples=6)
    close(got, wanted, start)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", ["async", "softsync", "ssp"])
def test_strategies_whose_order_is_recorded(comm, strategy, kind, tmp_path):
    path = comm.bcast(str(tmp_path / "order.jsonl"))
    got, start, layout = train(comm, kind, strategy, record=path, **expected.OPTIONS.get(strategy, {}))
    if comm.rank == 0:
        wanted = expected.by_record(path, start, 2, gradient_for(kind, layout, 1), lr=LR, samples=6)
        close(got, wanted, start)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", KINDS)
def test_decentralized_takes_the_right_gradients(comm, kind):
    """Updates arrive by chance and in parts: each step's gradient is checked, and that all end alike and nearer."""
    torch.set_num_threads(1)
    model = psgd.torch.wrap(module_of(kind, comm.rank))
    gradient = gradient_for(kind, model.layout, 0)
    with psgd.connect(comm, model, strategy="decentralized", lr=LR) as ps:
        first = ps.params.copy()
        for clock in range(STEPS):
            before = ps.params.copy()
            model.module.zero_grad()
            loss_of(kind, model.module, ps.worker, clock).backward()
            model.gather()
            np.testing.assert_allclose(ps.grads, gradient(before, ps.worker, clock), rtol=1e-5, atol=1e-6)
            ps.step(6)
    assert len(set(comm.allgather(model.params.tobytes()))) == 1
    assert np.abs(model.params - first).max() > 1e-4


def test_every_strategy_is_here():
    tested = {"sync", "allreduce", "averaging", "easgd", "hogwild", "async", "softsync", "ssp", "decentralized"}
    assert set(STRATEGIES) == tested


@pytest.mark.ranks(3)
@pytest.mark.parametrize("strategy", ["allreduce", "async"])
@pytest.mark.parametrize("buffers", ["average", "broadcast", "local"])
def test_buffers_of_all_ranks_after_a_run(comm, strategy, buffers):
    module = module_of("batchnorm", comm.rank)
    model = psgd.torch.wrap(module, buffers=buffers)
    own = None
    with psgd.connect(comm, model, strategy=strategy, lr=LR) as ps:
        for clock in range(2 + ps.worker):
            module.zero_grad()
            loss_of("batchnorm", module, ps.worker, clock).backward()
            ps.step(6)
        own = module[1].running_mean.numpy().copy()
    means = comm.allgather(own)
    workers = [each for each in means if each is not None]
    assert not np.allclose(workers[0], workers[1])
    mine = workers[0] if own is None else own
    expected = {"average": np.mean(workers, axis=0), "broadcast": workers[0], "local": mine}[buffers]
    np.testing.assert_allclose(module[1].running_mean.numpy(), expected, rtol=1e-6, atol=1e-7)
    count = 2 + ps.mesh.index if buffers == "local" and ps.is_worker else 2
    assert module[1].num_batches_tracked.item() == count


@pytest.mark.job
@pytest.mark.parametrize(("strategy", "ranks"), [("allreduce", 2), ("ssp", 3)])
def test_a_run_without_a_step_says_so(job, strategy, ranks):
    """The loop still calls its own optimizer, so psgd sees nothing of what it does."""
    code = f"""
import psgd, torch
from mpi4py import MPI
module = torch.nn.Linear(2, 1)
model = psgd.torch.wrap(module)
optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
with psgd.connect(MPI.COMM_WORLD, model, strategy={strategy!r}) as ps:
    for _ in range(3 * (ps.workers > 0)):
        module(torch.ones(4, 2)).sum().backward()
        optimizer.step()
"""
    said = job(ranks, code, check=True, timeout=60).stderr
    assert said.count("warning: the first worker took no step, so its training is lost") == 1, said
