"""Existing loops under every strategy, against sequential simulations with `torch.optim` itself."""

import numpy as np
import pytest
from harness import simulation

import psgd
from psgd.strategies import STRATEGIES

torch = pytest.importorskip("torch")
from harness.torch_cases import KINDS, TorchRule, gradient_for, loss_of, module_of  # noqa: E402

STEPS = 5


def optimizer_of(module):
    """Two groups: no weight decay on vectors, and another rate."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.2},
        {"params": [p for p in parameters if p.ndim == 1], "lr": 0.03},
    ]
    return torch.optim.AdamW(groups, lr=0.02, weight_decay=0.0, eps=1e-3)  # gradients of noise stay small


def scheduler_of(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def samples_of(worker, clock):
    return 6


def train(comm, kind, strategy, turns=False, before=False, **options):
    """One run: the final vector, its start, the layout; `turns` makes workers step one after the other."""
    torch.set_num_threads(1)
    module = module_of(kind, comm.rank)
    optimizer = optimizer_of(module)
    scheduler = scheduler_of(optimizer) if before else None  # it may be made with either
    optimizer = psgd.torch.DistributedOptimizer(optimizer, comm, module=module, strategy=strategy, **options)
    scheduler = scheduler or scheduler_of(optimizer)
    connection, layout = optimizer.connection, optimizer.model.layout
    workers = comm.Split(connection.is_server)
    with optimizer:
        for clock in range(STEPS):
            for turn in range(optimizer.workers if turns else 1):
                if turns:
                    workers.Barrier()
                    if turn != optimizer.worker:
                        continue
                optimizer.zero_grad()
                loss_of(kind, module, optimizer.worker, clock).backward()
                optimizer.step(samples=6)
                scheduler.step()
    workers.Free()
    assert len(set(comm.allgather(optimizer.model.params.tobytes()))) == 1
    start = psgd.torch.wrap(module_of(kind, connection.servers))
    return optimizer.model.params.copy(), start.params.copy(), layout


def rule_of(kind, first, layout):
    module = module_of(kind, first)
    optimizer = optimizer_of(module)
    return TorchRule(module, layout, optimizer, scheduler_of(optimizer))


class Elastic(simulation.Elastic):
    """easgd: a worker whose own step is PyTorch's."""

    def __init__(self, number, start, gradient, rule):
        super().__init__(number, start, samples_of, gradient, 0.0, 0.0)
        self.rule = rule

    def step(self, a=0.0, centre=None, mistake=""):
        pull = 0.0 if centre is None else np.float32(a) * (self.x - centre)
        moved = self.x.copy()
        self.rule.step(moved, self.gradient(self.x, self.number, self.t), 0.0)
        self.x = moved - pull
        self.t += 1
        return pull


def expected_of(strategy, start, rules, gradient):
    """What a sequential program comes to."""
    workers = len(rules)
    if strategy in ("sync", "allreduce"):
        return simulation.synchronous(start, workers, rules[0], float, lambda _: STEPS, samples_of, gradient)[0]
    if strategy == "averaging":
        return simulation.averaging(start, workers, rules, 2, float, lambda _: STEPS, samples_of, gradient)[0]
    if strategy == "easgd":
        crew = [Elastic(worker, start, gradient, rule) for worker, rule in enumerate(rules)]
        return simulation.easgd("sync", crew, [STEPS] * workers, 2, 0.9 / workers)
    w = start.copy()  # hogwild, in turns
    for clock in range(STEPS):
        for worker, rule in enumerate(rules):
            rule.step(w, gradient(w, worker, clock), 0.0)
    return w


OPTIONS = {"averaging": {"period": 2}, "easgd": {"period": 2, "easgd_order": "sync"}}


def close(got, expected, start):
    assert np.abs(expected - start).max() > 1e-3, "it was trained"
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", ["sync", "allreduce", "averaging", "easgd", "hogwild"])
def test_strategies_without_chance(comm, strategy, kind):
    options = OPTIONS.get(strategy, {})
    got, start, layout = train(comm, kind, strategy, strategy == "hogwild", kind == "tied", **options)
    servers = int(strategy == "sync")
    rules = [rule_of(kind, servers, layout) for _ in range(comm.size - servers)]
    close(got, expected_of(strategy, start, rules, gradient_for(kind, layout, servers)), start)


@pytest.mark.ranks(4)
def test_several_servers(comm):
    got, start, layout = train(comm, "batchnorm", "sync", servers=2)
    rules = [rule_of("batchnorm", 2, layout) for _ in range(2)]
    close(got, expected_of("sync", start, rules, gradient_for("batchnorm", layout, 2)), start)


@pytest.mark.ranks(1)
def test_one_rank(comm):
    got, start, layout = train(comm, "plain", "ssp")
    close(got, expected_of("hogwild", start, [rule_of("plain", 0, layout)], gradient_for("plain", layout, 0)), start)


def by_log(start, entries, rule, gradient):
    """A server's strategy: each group's mean, by the rule at the rates of its newest push."""
    base = [group["lr"] for group in rule.optimizer.param_groups]
    rule.scheduler = None
    w, each, newest = start.copy(), [], 0
    copies = [w.copy() for _ in range(2)]
    for entry in entries:
        for worker, push, weight in entry.group:
            each.append(weight * gradient(copies[worker], worker, push - 1))
            newest = max(newest, push)
        if each and not entry.stays_open:
            for group, lr in zip(rule.optimizer.param_groups, base, strict=True):
                group["lr"] = lr * 0.5 ** ((newest - 1) // 2)
            rule.step(w, sum(each) / np.float32(len(each)), 0.0)
            each, newest = [], 0
        for worker in entry.release:
            copies[worker] = w.copy()
    return w


@pytest.mark.ranks(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", ["async", "softsync", "ssp"])
def test_strategies_whose_order_is_recorded(comm, strategy, kind, tmp_path):
    from pathlib import Path

    from psgd.server.record_replay import load

    options = {"softsync": {"softsync": 2}, "ssp": {"staleness": 1}}.get(strategy, {})
    path = comm.bcast(str(tmp_path / "order.jsonl"))
    got, start, layout = train(comm, kind, strategy, record=path, **options)
    if comm.rank == 0:
        import json

        head = json.loads(Path(path).read_text().splitlines()[0])
        rule = rule_of(kind, 1, layout)
        close(got, by_log(start, load(Path(path), head["run"]), rule, gradient_for(kind, layout, 1)), start)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", KINDS)
def test_decentralized(comm, kind):
    """Of losses whose gradients do not depend on the parameters, updates add up in any order."""
    torch.set_num_threads(1)

    def loss(module, worker, clock):
        used = [p for p in module[:3].parameters() if p.requires_grad]
        generator = torch.Generator().manual_seed(10 * worker + clock)
        return sum((p * torch.randn(p.shape, generator=generator)).sum() for p in used)

    def run(optimizer, module, worker):
        scheduler = scheduler_of(optimizer)
        for clock in range(STEPS):
            optimizer.zero_grad()
            loss(module, worker, clock).backward()
            optimizer.step()
            scheduler.step()

    def sgd(module):
        return torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.05, momentum=0.9)

    module = module_of(kind, comm.rank)
    optimizer = psgd.torch.DistributedOptimizer(
        sgd(module), comm, module=module, strategy="decentralized", compress="none"
    )
    with optimizer:
        run(optimizer, module, optimizer.worker)
    expected = psgd.torch.wrap(module_of(kind, 0)).params.copy()
    start = expected.copy()
    for worker in range(comm.size):
        alone = module_of(kind, 0)
        run(sgd(alone), alone, worker)
        expected += psgd.torch.wrap(alone).params - start
    close(optimizer.model.params, expected, start)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("strategy", ["ssp", "allreduce"])
def test_compressed_updates_of_sgd(comm, strategy):
    """A codec that sends all elements: the same as without, with the scheduler's rates."""
    vectors = []
    for options in ({}, {"compress": "topk", "density": 1.0}):
        module = module_of("plain", comm.rank)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        optimizer = psgd.torch.DistributedOptimizer(optimizer, comm, strategy=strategy, **options)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        with optimizer:
            for clock in range(3 if optimizer.worker == 0 else 0):
                optimizer.zero_grad()
                loss_of("plain", module, optimizer.worker, clock).backward()
                optimizer.step()
                scheduler.step()
        vectors.append(optimizer.model.params.copy())
    np.testing.assert_allclose(vectors[1], vectors[0], rtol=1e-5, atol=1e-6)
    assert np.isfinite(vectors[0]).all()


def test_every_strategy_is_here():
    tested = {"sync", "allreduce", "averaging", "easgd", "hogwild", "async", "softsync", "ssp", "decentralized"}
    assert set(STRATEGIES) == tested


@pytest.mark.ranks(3)
@pytest.mark.parametrize("strategy", ["sync", "allreduce", "ssp", "averaging"])
def test_an_overflow_on_one_worker(comm, strategy):
    """sync and allreduce: nobody takes that step. Else that worker's gradient alone is left out."""
    torch.set_num_threads(1)
    module = module_of("plain", comm.rank)
    options = {"staleness": 0} if strategy == "ssp" else {"period": 1} if strategy == "averaging" else {}
    optimizer = psgd.torch.DistributedOptimizer(
        optimizer_of(module), comm, module=module, strategy=strategy, on_nan="stop", **options
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=100)
    connection, layout = optimizer.connection, optimizer.model.layout
    with optimizer:
        for clock in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of("plain", module, optimizer.worker, clock)
            if clock == 2 and optimizer.worker == 1:
                loss = loss * torch.inf
            scaler.scale(loss).backward()
            if clock % 2:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(module.parameters(), 100.0)
            scaler.step(optimizer, samples=6)
            scaler.update()
        assert scaler.get_scale() == 2.0 ** (9 if optimizer.worker == 1 else 10)
    servers = connection.servers
    assert len(set(comm.allgather(optimizer.model.params.tobytes()))) == 1
    gradient = gradient_for("plain", layout, servers)
    workers, module = comm.size - servers, module_of("plain", servers)
    start = psgd.torch.wrap(module_of("plain", servers)).params.copy()
    skipped = {"sync": range(workers), "allreduce": range(workers)}.get(strategy, [1])

    def samples(worker, clock):
        return 0 if clock == 2 and worker in skipped else 6

    rules = [TorchRule(module_of("plain", servers), layout, None) for _ in range(workers)]
    for rule in rules:
        rule.optimizer = optimizer_of(rule.module)
    if strategy == "averaging":
        expected = simulation.averaging(start, workers, rules, 1, float, lambda _: STEPS, samples, gradient)[0]
    elif strategy == "ssp":
        assert np.isfinite(optimizer.model.params).all() and np.abs(optimizer.model.params - start).max() > 1e-3
        return
    else:
        expected = simulation.synchronous(start, workers, rules[0], float, lambda _: STEPS, samples, gradient)[0]
        own = optimizer.settings.skipped
        assert own == (1 if strategy == "allreduce" or connection.is_server else 0)
    close(optimizer.model.params, expected, start)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("strategy", ["allreduce", "averaging"])
def test_float32_masters_of_bfloat16(comm, strategy):
    """Gradients are bfloat16; the rule works on float32 copies, so that steps below bfloat16's resolution add up."""
    torch.set_num_threads(1)
    module = module_of("plain", comm.rank).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, weight_decay=0.0)
    options = {"period": 1} if strategy == "averaging" else {}
    optimizer = psgd.torch.DistributedOptimizer(optimizer, comm, module=module, strategy=strategy, **options)
    start = module_of("plain", 0).to(torch.bfloat16)
    with optimizer:
        for _ in range(8):
            optimizer.zero_grad()
            for p in module.parameters():
                p.grad = torch.ones_like(p)
            optimizer.step()
    masters = optimizer.model.layout.views(optimizer.model.params)
    for name, p in start.named_parameters():
        expected = p.detach().float().numpy() - 8e-4  # Adam's steps along equal gradients
        np.testing.assert_allclose(masters[name], expected, rtol=0, atol=2e-6)
        now = dict(module.named_parameters())[name]
        assert now.dtype == torch.bfloat16
        torch.testing.assert_close(
            now.detach(), torch.from_numpy(masters[name].copy()).to(torch.bfloat16), rtol=0, atol=0
        )
    state = optimizer.state_dict()["state"]
    assert all(each["exp_avg"].dtype == torch.float32 for each in state.values())


@pytest.mark.ranks(3)
@pytest.mark.parametrize("strategy", ["sync", "allreduce"])
def test_workers_with_fewer_steps_follow_the_rates_of_the_others(comm, strategy):
    """Also where each has made up another rate: all take the same steps."""
    torch.set_num_threads(1)
    module = module_of("plain", comm.rank)
    sgd = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
    optimizer = psgd.torch.DistributedOptimizer(sgd, comm, module=module, strategy=strategy)
    rates = [0.1, 0.05, 0.2, 0.01]
    with optimizer:
        for clock, rate in enumerate(rates[: 4 - optimizer.worker]):
            optimizer.param_groups[0]["lr"] = rate + optimizer.worker
            optimizer.zero_grad()
            for p in module.parameters():
                p.grad = torch.full_like(p, 1.0 + clock)
            optimizer.step()
    assert optimizer.param_groups[0]["lr"] == 0.01 or (optimizer.connection.servers and optimizer.connection.is_worker)
    alone = module_of("plain", optimizer.connection.servers)
    expected = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.5)
    for clock, rate in enumerate(rates):
        expected.param_groups[0]["lr"] = rate
        for p in alone.parameters():
            p.grad = torch.full_like(p, 1.0 + clock)
        expected.step()
    np.testing.assert_allclose(optimizer.model.params, psgd.torch.wrap(alone).params, rtol=1e-5, atol=1e-6)
    assert len(set(comm.allgather(optimizer.model.params.tobytes()))) == 1
