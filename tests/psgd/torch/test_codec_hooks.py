"""Hooks of DDP with codecs, against a sequential program with a codec for each worker."""

import contextlib

import numpy as np
import pytest
from harness.ddp import process_group

import psgd
from psgd import collectives
from psgd.kernels import codecs
from psgd.kernels.errors import UsageError

torch = pytest.importorskip("torch")
nn = torch.nn
LR, STEPS = 0.1, 6
HOOKS = {
    "onebit": ("onebit_hook", {"block": 64}, {"block": 64}),
    "threshold": ("threshold_hook", {"density": 0.1}, {"density": 0.1}),
    "topk": ("topk_hook", {"density": 0.1}, {"density": 0.1, "momentum": 0.0}),
    "momentum": ("topk_hook", {"density": 0.1, "momentum": 0.9}, {"density": 0.1, "momentum": 0.9}),
}


def net(dtype=None):
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(7, 30), nn.Tanh(), nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, 5)).to(dtype)


def batch(rank, step, dtype=None):
    return torch.randn(6, 7, generator=torch.Generator().manual_seed(100 * rank + step)).to(dtype)


def loss_of(model, rank, step, dtype=None):
    return model(batch(rank, step, dtype)).square().mean()


def hooked(kind):
    name, options, _ = HOOKS[kind]
    return getattr(psgd.torch, name)(**options)


def trained(comm, ours, hook, cap, layouts, dtype=None, accumulate=1, **options):
    """The module after some steps of DDP with a hook; `layouts` gets each step's buckets: numbers of parameters."""
    module = net(dtype)
    model = nn.parallel.DistributedDataParallel(module, bucket_cap_mb=cap, **options)
    numbers = {id(p): k for k, p in enumerate(module.parameters())}

    def noting(state, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.index() == 0:
            layouts.append([])
        layouts[-1].append([numbers[id(p)] for p in bucket.parameters()])
        return hook(state, bucket)

    model.register_comm_hook(ours, noting)
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(accumulate):
            with model.no_sync() if part < accumulate - 1 else contextlib.nullcontext():
                loss_of(model, comm.rank, step * accumulate + part, dtype).backward()
        optimizer.step()
    return module


def simulated(size, kind, layouts, dtype=None, accumulate=1):
    """The same in one process; also each worker's residuals, by parameter."""
    module = net(dtype)
    params = list(module.parameters())
    optimizer = torch.optim.SGD(params, lr=LR)
    name, _, options = HOOKS[kind]
    name = name.removesuffix("_hook")
    made, before = {}, None
    for step, layout in enumerate(layouts):
        if layout != before:  # a codec for each bucket and worker; what others have kept by parameter moves there
            kept = {}
            for (worker, numbers), codec in made.items():
                at = 0
                for k in numbers:
                    n = params[k].numel()
                    kept[worker, k] = {a: v[at : at + n] for a, v in codec.arrays().items() if v.size == codec.n}
                    at += n
            made, before = {}, layout
            for worker in range(size):
                for numbers in layout:
                    total = sum(params[k].numel() for k in numbers)
                    codec = codecs.create(name, total, str(params[0].dtype).removeprefix("torch."), **options)
                    made[worker, tuple(numbers)], at = codec, 0
                    for k in numbers:
                        n = params[k].numel()
                        for a, values in kept.get((worker, k), {}).items():
                            codec.arrays()[a][at : at + n] = values
                        at += n
        sums = {}
        for worker in range(size):
            optimizer.zero_grad()
            for part in range(accumulate):
                loss_of(module, worker, step * accumulate + part, dtype).backward()
            for numbers in layout:
                codec = made[worker, tuple(numbers)]
                update = torch.cat([params[k].grad.flatten() for k in numbers]).numpy()
                payload = np.empty(codec.max_nbytes(), np.uint8)
                nbytes = codec.encode(update, payload)
                codec.decode_add(payload[:nbytes], sums.setdefault(tuple(numbers), np.zeros_like(update)))
        for numbers, total in sums.items():
            at = 0
            for k in numbers:
                n = params[k].numel()
                params[k].grad = torch.from_numpy(total[at : at + n].reshape(params[k].shape).copy()).div_(size)
                at += n
        optimizer.step()
    return module, made


def check(comm, module, hook, kind, layouts, **options):
    expected, made = simulated(comm.size, kind, layouts, **options)
    start = list(net(options.get("dtype")).parameters())
    for ours, theirs, first in zip(module.parameters(), expected.parameters(), start, strict=True):
        assert torch.equal(ours, theirs) and not torch.equal(ours, first)
    params, compared = list(module.parameters()), 0
    for (worker, numbers), codec in made.items():
        at = 0
        for k in numbers:
            if worker == comm.rank:
                n = params[k].numel()
                np.testing.assert_array_equal(hook.residual(params[k]), codec.residual[at : at + n])
                compared += bool(codec.residual[at : at + n].any())
            at += params[k].numel()
    assert compared == len(params), "something was left to send"


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("cap", [25, 0.0005])
@pytest.mark.parametrize("kind", list(HOOKS))
def test_it_equals_a_sequential_simulation_bit_for_bit(comm, tmp_path, kind, cap):
    with process_group(comm, tmp_path), collectives.Communicator(comm) as ours:
        hook, layouts = hooked(kind), []
        module = trained(comm, ours, hook, cap, layouts, gradient_as_bucket_view=cap < 1)
        assert len(layouts) == STEPS and (cap == 25 or layouts[0] != layouts[1]), "DDP lays its buckets out anew"
        check(comm, module, hook, kind, layouts)
        assert hook.steps == STEPS and hook.bytes_sent > 0


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", ["onebit", "topk"])
def test_float64_and_accumulated_gradients(comm, tmp_path, kind):
    with process_group(comm, tmp_path), collectives.Communicator(comm) as ours:
        hook, layouts = hooked(kind), []
        module = trained(comm, ours, hook, 25, layouts, dtype=torch.float64, accumulate=2)
        check(comm, module, hook, kind, layouts, dtype=torch.float64, accumulate=2)


@pytest.mark.ranks(2)
def test_nothing_is_lost_and_a_warm_up_sends_all(comm, tmp_path):
    """A constant gradient, its own on each rank: what was applied and the mean of what is left are all that came."""
    with process_group(comm, tmp_path), collectives.Communicator(comm) as ours:
        module = nn.Linear(64, 4, bias=False)
        model = nn.parallel.DistributedDataParallel(module)
        hook = psgd.torch.topk_hook(0.05, warmup=3)
        model.register_comm_hook(ours, hook)
        gradient = torch.arange(256.0).reshape(4, 64) * (1 + comm.rank)
        applied = torch.zeros(4, 64)
        for step in range(12):
            module.zero_grad()
            (model(torch.eye(64)) * gradient.T).sum().backward()
            if step < 3:
                assert torch.equal(module.weight.grad, gradient / (1 + comm.rank) * 1.5)
            applied += module.weight.grad
        left = torch.from_numpy(hook.residual(module.weight).reshape(4, 64).copy())
        every = comm.allgather(left)
        assert left.any()
        torch.testing.assert_close(applied + sum(every) / 2, 12 * gradient / (1 + comm.rank) * 1.5)


@pytest.mark.ranks(1)
def test_what_is_left_to_send_is_saved_and_restored(comm, tmp_path):
    x = torch.eye(64)
    with process_group(comm, tmp_path), collectives.Communicator(comm) as ours:

        def model_and_hook():
            model = nn.parallel.DistributedDataParallel(nn.Linear(64, 4, bias=False))
            model.register_comm_hook(ours, hook := psgd.torch.topk_hook(0.05, warmup=1))
            return model, hook

        gradient = torch.arange(256.0).reshape(4, 64) + 1
        model, hook = model_and_hook()
        for _ in range(3):
            model.zero_grad()
            (model(x) * gradient.T).sum().backward()
        torch.save(hook.state_dict(model), tmp_path / "hook.pt")
        left = torch.from_numpy(hook.residual(model.module.weight).copy()).reshape(4, 64)
        assert left.any()

        model, hook = model_and_hook()
        hook.load_state_dict(torch.load(tmp_path / "hook.pt", weights_only=True), model)
        assert hook.steps == 3
        assert torch.equal(hook.state_dict(model.module)["kept"]["weight"]["residual"], left.flatten())
        model.zero_grad()
        (model(x) * gradient.T).sum().backward()
        now = torch.from_numpy(hook.residual(model.module.weight).copy()).reshape(4, 64)
        torch.testing.assert_close(model.module.weight.grad + now, gradient + left)


@pytest.mark.ranks(1)
def test_a_state_that_is_not_this_hooks_is_refused(comm, tmp_path):
    hook, module = psgd.torch.topk_hook(0.1), nn.Linear(3, 2)
    with pytest.raises(UsageError, match="topk_hook: load_state_dict: expected what state_dict returned"):
        hook.load_state_dict({"steps": 1}, module)
    kept = {"residual": torch.zeros(5)}
    for name, got in (("weight", "the module has 6 elements"), ("other", "the module has none of that name")):
        with pytest.raises(UsageError, match=f"{name}: expected a parameter of shape .*5.*, {got}"):
            hook.load_state_dict({"steps": 1, "kept": {name: kept}}, module)


@pytest.mark.ranks(2)
def test_a_gradient_that_is_not_finite_is_nan_on_all_ranks_and_leaves_residuals_alone(comm, tmp_path):
    with process_group(comm, tmp_path), collectives.Communicator(comm) as ours:
        module = nn.Linear(8, 4)
        model = nn.parallel.DistributedDataParallel(module)
        hook = psgd.torch.onebit_hook()
        model.register_comm_hook(ours, hook)
        for step in range(4):
            module.zero_grad()
            x = batch(comm.rank, step)[:, :1].expand(6, 8).clone()
            if step == 2:
                before = [hook.residual(p).copy() for p in module.parameters()]
                x[0] = np.inf if comm.rank == 1 else 0.0
            model(x).sum().backward()
            for p, kept in zip(module.parameters(), before if step == 2 else (), strict=step == 2):
                assert p.grad.isnan().all()
                np.testing.assert_array_equal(hook.residual(p), kept)
        assert all(p.grad.isfinite().all() for p in module.parameters())


@pytest.mark.ranks(2)
def test_gradients_of_16_bits_have_residuals_of_32(comm, tmp_path):
    with process_group(comm, tmp_path), collectives.Communicator(comm) as ours:
        module = nn.Linear(8, 4, dtype=torch.bfloat16)
        model = nn.parallel.DistributedDataParallel(module)
        hook = psgd.torch.topk_hook(0.1)
        model.register_comm_hook(ours, hook)
        loss_of(nn.Sequential(nn.Linear(7, 8).bfloat16(), model), comm.rank, 0, torch.bfloat16).backward()
        assert module.weight.grad.dtype == torch.bfloat16 and 1 <= int((module.weight.grad != 0).sum()) < 32
        assert hook.residual(module.weight).dtype == np.float32
        assert len(set(comm.allgather(module.weight.grad.float().numpy().tobytes()))) == 1


def test_wrong_options_are_refused_where_a_hook_is_made():
    with pytest.raises(UsageError, match="expected a density above 0"):
        psgd.torch.topk_hook(0.0)
    with pytest.raises(UsageError, match="codec threshold has no option 'momentum'"):
        psgd.torch.threshold_hook(momentum=0.9)
    with pytest.raises(UsageError, match="topk_hook: warmup: expected steps, 0 or more, got -1"):
        psgd.torch.topk_hook(warmup=-1)
    hook = psgd.torch.onebit_hook()
    assert hook.__qualname__ == "onebit_hook" and hook.residual(torch.zeros(1)) is None
