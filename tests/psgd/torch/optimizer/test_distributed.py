"""`DistributedOptimizer` as users of PyTorch expect it."""

import warnings

import numpy as np
import pytest

import psgd
from psgd.kernels.errors import UsageError

torch = pytest.importorskip("torch")
from harness.torch_cases import loss_of, module_of  # noqa: E402


def made(comm, module, kind=torch.optim.AdamW, strategy="allreduce", **options):
    optimizer = kind(module.parameters(), **({"lr": 0.05} | options.pop("own", {})))
    return psgd.torch.DistributedOptimizer(optimizer, comm, module=module, strategy=strategy, **options)


def step(optimizer, module, clock=0, worker=0):
    optimizer.zero_grad()
    loss_of("plain", module, worker, clock).backward()
    return optimizer.step()


@pytest.mark.ranks(1)
def test_it_is_an_optimizer(comm):
    module = module_of("plain")
    optimizer = made(comm, module)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert (optimizer.workers, optimizer.is_main) == (1, True)
    with pytest.raises(UsageError, match="add all groups before"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    with pytest.raises(UsageError, match="inside the `with` block only"):
        optimizer.step()
    hooked = []
    optimizer.register_step_post_hook(lambda *_: hooked.append(1))
    with optimizer:
        step(optimizer, module)
        optimizer.extra["mine"] = 3
    assert hooked == [1] and "AdamW" not in repr(type(optimizer)) and optimizer.connection.metrics is not None


@pytest.mark.ranks(1)
@pytest.mark.parametrize("before", [True, False])
def test_schedulers_made_with_either_do_not_warn(comm, before):
    module = module_of("plain")
    own = torch.optim.SGD(module.parameters(), lr=0.8)
    scheduler = torch.optim.lr_scheduler.StepLR(own, 1, 0.5) if before else None
    optimizer = psgd.torch.DistributedOptimizer(own, comm, strategy="sync")
    scheduler = scheduler or torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    with warnings.catch_warnings(), optimizer:
        warnings.simplefilter("error")
        for clock in range(3):
            step(optimizer, module, clock)
            scheduler.step()
    assert optimizer.param_groups[0]["lr"] == own.param_groups[0]["lr"] == 0.1


@pytest.mark.ranks(1)
def test_a_closure_is_evaluated_once(comm):
    module = module_of("plain")
    optimizer = made(comm, module)
    calls = []

    def closure():
        optimizer.zero_grad()
        loss = loss_of("plain", module, 0, 0)
        loss.backward()
        calls.append(loss.item())
        return loss

    before = module[0].weight.detach().clone()
    with optimizer, torch.no_grad():
        assert optimizer.step(closure).item() == calls[0]
    assert len(calls) == 1 and not torch.equal(before, module[0].weight)


@pytest.mark.ranks(1)
def test_autocast(comm):
    module = module_of("plain")
    optimizer = made(comm, module)
    with optimizer:
        for clock in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of("plain", module, 0, clock)
            loss.backward()
            optimizer.step()
    plain = module_of("plain")
    expected = torch.optim.AdamW(plain.parameters(), lr=0.05)
    for clock in range(3):
        expected.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of("plain", plain, 0, clock)
        loss.backward()
        expected.step()
    for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("strategy", ["allreduce", "sync"])
def test_the_state_passes_through(comm, strategy):
    """Saved by one optimizer and loaded by another, ours or PyTorch's; with servers the server has it."""
    torch.set_num_threads(1)
    module = module_of("plain")
    first = made(comm, module, strategy=strategy)
    with first:
        for clock in range(3):
            step(first, module, clock)
    saved, weights = comm.bcast(first.state_dict()), {k: v.clone() for k, v in module.state_dict().items()}
    assert set(saved["state"]) == {0, 1, 2, 3} and saved["state"][0]["step"] == 3
    plain = module_of("plain")
    plain.load_state_dict(weights)
    expected = torch.optim.AdamW(plain.parameters(), lr=0.5)
    expected.load_state_dict(saved)
    again = module_of("plain")
    again.load_state_dict(weights)
    second = made(comm, again, strategy=strategy, own={"lr": 0.5})
    second.load_state_dict(saved)
    assert second.param_groups[0]["lr"] == 0.05
    with second:
        for clock in range(3, 5):
            step(second, again, clock)
        with pytest.raises(UsageError, match="training has begun"):
            second.load_state_dict(saved)
    for clock in range(3, 5):
        expected.zero_grad()
        loss_of("plain", plain, 0, clock).backward()
        expected.step()
    for ours, theirs in zip(again.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.ranks(2)
def test_wrong_parameters_are_one_error_on_all_ranks(comm):
    module = module_of("plain")
    with pytest.raises(UsageError, match=r"0.bias: expected every trainable parameter of the module in the optimizer"):
        psgd.torch.DistributedOptimizer(torch.optim.SGD([module[0].weight], lr=0.1), comm, module=module)
    module, other = module_of("plain"), torch.nn.Parameter(torch.ones(1))
    if comm.rank == 0:
        kind = torch.optim.SGD([*module.parameters(), other], lr=0.1)
    else:
        kind = torch.optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(UsageError, match="an optimizer of the module's parameters alone, got 1 others"):
        psgd.torch.DistributedOptimizer(kind, comm, module=module)
    with pytest.raises(UsageError, match=r"optimizer: expected one of torch\.optim, got list"):
        psgd.torch.DistributedOptimizer([], comm)
    with pytest.raises(UsageError, match="expected an intracommunicator of mpi4py, got int"):
        psgd.torch.DistributedOptimizer(kind, 3)


@pytest.mark.ranks(2)
def test_different_options_are_one_error_on_all_ranks(comm):
    module = module_of("plain")
    with pytest.raises(psgd.ContractError, match="the same"):
        made(comm, module, own={"weight_decay": 0.1 * comm.rank})


@pytest.mark.ranks(1)
def test_gradients_on_their_way_cannot_be_unscaled(comm):
    module = module_of("plain")
    optimizer = made(comm, module)
    with optimizer:
        optimizer._overlapped, optimizer.grad_scale = True, torch.tensor(2.0)
        with pytest.raises(UsageError, match="omit overlap"):
            optimizer.step()


@pytest.mark.ranks(1)
def test_frozen_parameters_in_a_group(comm):
    module = module_of("frozen")
    optimizer = made(comm, module)
    before = module[0].weight.detach().clone()
    with optimizer:
        step(optimizer, module)
    assert torch.equal(before, module[0].weight)
    assert 0 not in optimizer.state_dict()["state"] and 1 in optimizer.state_dict()["state"]


@pytest.mark.ranks(2)
def test_a_module_is_not_needed(comm):
    module = module_of("batchnorm", comm.rank)
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer = psgd.torch.DistributedOptimizer(sgd, comm, strategy="allreduce")
    with optimizer:
        for clock in range(2):
            optimizer.zero_grad()
            loss_of("batchnorm", module, optimizer.worker, clock).backward()
            optimizer.step()
    for p in module.parameters():
        assert len(set(comm.allgather(p.detach().numpy().tobytes()))) == 1
    assert len(set(comm.allgather(module[1].running_mean.numpy().tobytes()))) == 2  # each has its own
    assert np.isfinite(optimizer.model.params).all()
