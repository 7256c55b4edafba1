"""Checkpoints of wrapped modules: buffers, float32 masters, PyTorch's rule and what a scheduler has set come back."""

import numpy as np
import pytest

import psgd

torch = pytest.importorskip("torch")
from harness.torch_cases import loss_of, module_of  # noqa: E402

HALF, STEPS = 4, 7


def plain_run(comm, folder, steps, strategy, dtype=torch.float32, buffers="average", **options):
    """Steps up to that clock; the vector, and this worker's buffers at the block's start and before its end."""
    torch.set_num_threads(1)
    module = module_of("batchnorm", comm.rank).to(dtype)
    model = psgd.torch.wrap(module, buffers=buffers)
    with psgd.connect(comm, model, strategy=strategy, lr=0.1, rule="momentum", checkpoint_dir=folder, **options) as ps:
        first = packed(module)
        for clock in range(ps.clock, steps):
            module.zero_grad()
            loss(module, ps.worker, clock, dtype).backward()
            ps.step(6)
        return model, module, first, packed(module)
    return model, module, None, None


def loss(module, worker, clock, dtype):
    if dtype == torch.float32:
        return loss_of("batchnorm", module, worker, clock)
    generator = torch.Generator().manual_seed(100 * worker + clock)
    x = torch.randn(6, 4, generator=generator).to(dtype)
    return torch.nn.functional.mse_loss(module(x), x)


def packed(module):
    return [b.detach().double().numpy().copy() for b in module.buffers()]


@pytest.mark.ranks(3)
@pytest.mark.parametrize("strategy", ["allreduce", "sync", "averaging"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_run_that_was_cut_ends_as_one_that_was_not(comm, strategy, dtype, tmp_path):
    folder = comm.bcast(str(tmp_path))
    options, dtype = {"period": 1} if strategy == "averaging" else {}, getattr(torch, dtype)
    whole, module, _, uncut = plain_run(comm, f"{folder}/whole", STEPS, strategy, dtype, **options)
    plain_run(comm, f"{folder}/cut", HALF, strategy, dtype, checkpoint_every=HALF, **options)
    again, other, first, last = plain_run(comm, f"{folder}/cut", STEPS, strategy, dtype, resume=True, **options)
    np.testing.assert_array_equal(again.params, whole.params)
    if uncut is not None:  # a worker
        assert first[2] == HALF and last[2] == STEPS
        for mine, theirs in zip(last, uncut, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    for mine, theirs in zip(other.state_dict().values(), module.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    assert all(p.dtype == dtype for p in other.parameters())


@pytest.mark.ranks(4)
@pytest.mark.parametrize("strategy", ["allreduce", "sync"])
@pytest.mark.parametrize("buffers", ["average", "broadcast", "local"])
def test_another_number_of_workers_starts_from_the_buffers_of_those_before(comm, strategy, buffers, tmp_path):
    folder = comm.bcast(str(tmp_path))
    _, _, _, own = plain_run(comm, folder, HALF, strategy, buffers=buffers, checkpoint_every=HALF)
    saved = [each for each in comm.allgather(own) if each is not None]
    assert len(saved) == (4 if strategy == "allreduce" else 3) and not np.allclose(saved[0][0], saved[1][0])
    expected = saved[0] if buffers == "broadcast" else [np.mean(each, axis=0) for each in zip(*saved, strict=True)]
    for size in (2, 1):
        part = comm.Split(comm.rank < size)
        if comm.rank < size:
            _, module, first, _ = plain_run(part, folder, 0, strategy, buffers=buffers, resume=True)
            if first is not None:
                np.testing.assert_allclose(first[0], expected[0], rtol=1e-6, atol=1e-7)
                np.testing.assert_allclose(first[1], expected[1], rtol=1e-6)
                assert first[2] == HALF
            if buffers == "broadcast":  # else the mean counts workers with steps in this run, of which there is none
                np.testing.assert_allclose(packed(module)[0], expected[0], rtol=1e-6, atol=1e-7)
        part.Free()


def run(comm, folder, steps, strategy, **options):
    """The same with PyTorch's optimizer and a scheduler; at clock 1 worker 1's gradient overflows."""
    torch.set_num_threads(1)
    module = module_of("batchnorm", comm.rank)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.05, eps=1e-3)
    optimizer = psgd.torch.DistributedOptimizer(
        optimizer, comm, module=module, strategy=strategy, checkpoint_dir=folder, **options
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    rates = []
    with optimizer:
        connection = optimizer.connection
        if "scheduler" in optimizer.extra:
            scheduler.load_state_dict(optimizer.extra["scheduler"])
            scheduler.step()  # that of the step which saved
        rates.append(optimizer.param_groups[0]["lr"])
        for clock in range(connection.clock, steps):
            optimizer.zero_grad()
            wrong = torch.inf if (clock, optimizer.worker) == (1, 1) else 1.0
            scaler.scale(wrong * loss_of("batchnorm", module, optimizer.worker, clock)).backward()
            optimizer.extra["scheduler"] = scheduler.state_dict()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
    return optimizer, rates


@pytest.mark.ranks(3)
@pytest.mark.parametrize("strategy", ["allreduce", "sync"])
def test_rule_and_rate_of_a_run_that_was_cut(comm, strategy, tmp_path):
    folder = comm.bcast(str(tmp_path))
    whole, _ = run(comm, f"{folder}/whole", STEPS, strategy)
    run(comm, f"{folder}/cut", HALF, strategy, checkpoint_every=HALF)
    again, rates = run(comm, f"{folder}/cut", STEPS, strategy, resume=True)
    np.testing.assert_array_equal(again.model.params, whole.model.params)
    if rates:
        assert rates == [0.0125]
    if whole.connection.servers == 0 or whole.connection.is_server:
        assert again.settings.skipped == whole.settings.skipped == 1
        torch.testing.assert_close(again.state_dict()["state"], whole.state_dict()["state"], rtol=0, atol=0)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("strategy", ["allreduce", "sync", "averaging"])
def test_rates_come_to_another_number_of_workers(comm, strategy, tmp_path):
    folder = comm.bcast(str(tmp_path))
    options = {"period": 1} if strategy == "averaging" else {}
    run(comm, folder, HALF, strategy, checkpoint_every=HALF, **options)
    part = comm.Split(comm.rank < 2)
    if comm.rank < 2:
        optimizer, rates = run(part, folder, 0, strategy, resume=True, **options)
        assert rates in ([], [0.025])  # without extra: of the step that saved
        assert np.isfinite(optimizer.model.params).all()
    part.Free()
