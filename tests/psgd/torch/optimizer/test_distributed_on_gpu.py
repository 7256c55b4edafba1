"""Optimizers of `torch.optim` with their module on a GPU, under every strategy, against the same run on the host."""

import numpy as np
import pytest

import psgd
from psgd.kernels.errors import UsageError

torch = pytest.importorskip("torch")
from harness.torch_cases import batch, module_of  # noqa: E402
from harness.torch_gpu import gpu, hogwild_in_turns, loss_on, on_host  # noqa: E402

pytestmark = pytest.mark.gpu
STEPS = 5
OPTIONS = {"averaging": {"period": 2}, "easgd": {"period": 2, "easgd_order": "sync"}, "ssp": {"staleness": 0}}


def adamw(module, **options):
    parameters = list(module.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.2},
        {"params": [p for p in parameters if p.ndim == 1], "lr": 0.03},
    ]
    return torch.optim.AdamW(groups, lr=0.02, weight_decay=0.0, eps=1e-3, **options)


def scheduler_of(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def train(comm, strategy, device, make=adamw, **options):
    torch.set_num_threads(1)
    module = module_of("batchnorm", comm.rank).to(device, torch.float64)
    optimizer = psgd.torch.DistributedOptimizer(make(module), comm, module=module, strategy=strategy, **options)
    scheduler = scheduler_of(optimizer)
    connection = optimizer.connection
    workers = comm.Split(connection.is_server)
    with optimizer:
        for clock in range(STEPS):
            for turn in range(optimizer.workers if strategy == "hogwild" else 1):
                if strategy == "hogwild":
                    workers.Barrier()
                    if turn != optimizer.worker:
                        continue
                optimizer.zero_grad()
                loss_on("plain", module, optimizer.worker, clock).backward()
                optimizer.step(samples=6)
                scheduler.step()
    workers.Free()
    vector = on_host(optimizer.model.params)
    assert len(set(comm.allgather(vector.tobytes()))) == 1
    return vector, optimizer.state_dict()


def close(got, expected, rtol=1e-9):
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol / 10)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("strategy", ["sync", "allreduce", "averaging", "easgd"])
def test_strategies_without_chance(comm, strategy):
    device, options = gpu(), OPTIONS.get(strategy, {})
    expected, _ = train(comm, strategy, "cpu", **options)
    found, _ = train(comm, strategy, device, **options)
    close(found, expected)


@pytest.mark.ranks(3)
def test_hogwild_in_turns(comm):
    def both(module):
        optimizer = adamw(module)
        return optimizer, scheduler_of(optimizer)

    found, _ = train(comm, "hogwild", gpu())
    layout = psgd.torch.wrap(module_of("batchnorm")).layout
    close(found, hogwild_in_turns("batchnorm", torch.float64, layout, comm.size, STEPS, both))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("strategy", ["async", "softsync", "ssp"])
def test_one_worker_behind_a_server(comm, strategy):
    device = gpu()
    close(train(comm, strategy, device)[0], train(comm, strategy, "cpu")[0])


@pytest.mark.ranks(2)
def test_decentralized(comm):
    def sgd(module):
        return torch.optim.SGD(module.parameters(), lr=0.02, momentum=0.5)

    found, _ = train(comm, "decentralized", gpu(), sgd)
    assert np.isfinite(found).all()


@pytest.mark.ranks(4)
def test_several_servers(comm):
    device = gpu()
    close(train(comm, "sync", device, servers=2)[0], train(comm, "sync", "cpu", servers=2)[0])


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": False}, {"capturable": True}])
def test_forms_of_an_optimizer(comm, options):
    device = gpu()
    expected, host = train(comm, "allreduce", "cpu")
    found, state = train(comm, "allreduce", device, lambda module: adamw(module, **options))
    rtol = 1e-5 if options.get("capturable") else 1e-9  # PyTorch then corrects the bias with float32 numbers of steps
    close(found, expected, rtol)
    for index, saved in host["state"].items():
        for key, value in saved.items():
            other = state["state"][index][key]
            torch.testing.assert_close(other.cpu(), value, rtol=rtol, atol=rtol / 10, check_dtype=False)
    assert state["state"][0]["exp_avg"].device.type == "cuda"


@pytest.mark.ranks(2)
@pytest.mark.parametrize("strategy", ["sync", "hogwild"])
def test_a_form_for_gpus_alone_is_refused_where_the_rule_runs_on_the_host(comm, strategy):
    with pytest.raises(UsageError, match=r"AdamW cannot take a step here: .*capturable"):
        train(comm, strategy, gpu(), lambda module: adamw(module, capturable=True))


@pytest.mark.ranks(1)
def test_a_saved_state_goes_on(comm):
    device = gpu()
    _, state = train(comm, "allreduce", device)

    def resumed(module):
        optimizer = adamw(module)
        optimizer.load_state_dict(state)
        return optimizer

    here, _ = train(comm, "allreduce", "cpu", resumed)
    there, _ = train(comm, "allreduce", device, resumed)
    close(there, here)


@pytest.mark.ranks(2)
def test_a_rule_that_is_not_elementwise(comm):
    def nadam(module):
        return torch.optim.NAdam(module.parameters(), lr=0.01, eps=1e-3)

    device = gpu()
    close(train(comm, "allreduce", device, nadam)[0], train(comm, "allreduce", "cpu", nadam)[0])


@pytest.mark.ranks(3)
@pytest.mark.parametrize("strategy", ["sync", "allreduce", "averaging"])
def test_an_overflow_on_one_worker(comm, strategy):
    module = module_of("plain", comm.rank).to(gpu())
    options = {"period": 1} if strategy == "averaging" else {}
    optimizer = psgd.torch.DistributedOptimizer(
        adamw(module), comm, module=module, strategy=strategy, on_nan="stop", **options
    )
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=100)
    start = comm.bcast(on_host(optimizer.model.params), optimizer.connection.servers)
    steps = 0
    with optimizer:
        for clock in range(STEPS):
            before = on_host(optimizer.connection.params)
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = loss_on("plain", module, optimizer.worker, clock)
            if clock == 2:
                loss = loss * torch.inf if optimizer.worker == 1 else loss
            scaler.scale(loss).backward()
            if clock % 2:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(module.parameters(), 100.0)
            scaler.step(optimizer, samples=6)
            scaler.update()
            moved = bool((on_host(optimizer.connection.params) != before).any())
            assert moved != (clock == 2 and strategy != "averaging"), clock
            steps += 1
        assert scaler.get_scale() == 2.0 ** (9 if optimizer.worker == 1 else 10)
    final = on_host(optimizer.model.params)
    assert np.isfinite(final).all() and np.abs(final - start).max() > 1e-3
    assert len(set(comm.allgather(final.tobytes()))) == 1


@pytest.mark.ranks(2)
def test_autocast_in_bfloat16(comm):
    module = module_of("plain", comm.rank).to(gpu())
    optimizer = psgd.torch.DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=0.05), comm, module=module)
    x, y = (each.to(optimizer.model.device) for each in batch(0, 0))
    losses = []
    with optimizer:
        for _ in range(20):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = torch.nn.functional.mse_loss(module(x).float(), y)
            loss.backward()
            optimizer.step(loss=loss.item())
            losses.append(loss.item())
    assert not losses or losses[-1] < 0.8 * losses[0]
