"""Hooks of DDP: the gradients that DDP has without one."""

import contextlib
import sys

import pytest
from harness.ddp import process_group

import psgd
from psgd import collectives
from psgd.kernels.errors import ContractError, UsageError

torch = pytest.importorskip("torch")
nn = torch.nn


class Net(nn.Module):
    """Layers of several sizes; what the batch says is not used by some ranks, or by none."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.first, self.norm, self.last = nn.Linear(7, 33), nn.BatchNorm1d(33), nn.Linear(33, 5)
        self.sometimes, self.never = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x, extra=False):
        y = self.last(torch.tanh(self.norm(self.first(x))))
        return self.sometimes(y) if extra else y


def batch(rank, step):
    return torch.randn(6, 7, generator=torch.Generator().manual_seed(100 * rank + step))


def gradients(comm, hook, state, steps=4, accumulate=1, dtype=None, **options):
    """All parameters' gradients after each step of training, of DDP with that hook, or without."""
    module = Net().to(dtype)
    options = {"find_unused_parameters": True, **options}
    model = nn.parallel.DistributedDataParallel(module, **options)
    if hook is not None:
        model.register_comm_hook(state, hook)
    optimizer, found = torch.optim.SGD(module.parameters(), lr=0.1), []
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(accumulate):
            with model.no_sync() if part < accumulate - 1 else contextlib.nullcontext():
                x = batch(comm.rank, step * accumulate + part).to(dtype)
                model(x, extra=comm.rank == step % 2).square().mean().backward()
        found.append([None if p.grad is None else p.grad.clone() for p in module.parameters()])
        optimizer.step()
    return found


def same(ours, theirs, exactly, **tolerance):
    moved = False
    for mine, reference in zip(ours, theirs, strict=True):
        for one, other in zip(mine, reference, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                moved |= bool(one.any())
                assert one.dtype == other.dtype
                if exactly:
                    assert torch.equal(one, other)
                else:
                    torch.testing.assert_close(one, other, **tolerance)
    assert moved


def everywhere_the_same(comm, found):
    assert len(set(comm.allgather(b"".join(g.numpy().tobytes() for g in found[-1] if g is not None)))) == 1


OPTIONS = {
    "plain": {},
    "small": {"bucket_cap_mb": 1e-4},
    "views": {"gradient_as_bucket_view": True, "bucket_cap_mb": 5e-4},
    "static": {"static_graph": True, "find_unused_parameters": False},
}


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("thread", ["0", "1"])
@pytest.mark.parametrize("kind", ["plain", "small", "views"])
def test_the_mean_is_that_of_ddp(comm, tmp_path, kind, thread, accumulate):
    with pytest.MonkeyPatch.context() as patch, process_group(comm, tmp_path):
        patch.setenv("PSGD_PROGRESS", thread)
        with collectives.Communicator(comm) as ours:
            assert ours.threaded == (thread == "1")
            found = gradients(comm, psgd.torch.allreduce_hook, ours, accumulate=accumulate, **OPTIONS[kind])
        theirs = gradients(comm, None, None, accumulate=accumulate, **OPTIONS[kind])
        everywhere_the_same(comm, found)
        # Of two ranks it has the same bits. DDP multiplies by a rounded third before it sums.
        same(found, theirs, exactly=comm.size == 2, rtol=1e-4, atol=1e-6)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_other_dtypes(comm, tmp_path, dtype):
    kind = getattr(torch, dtype)
    with process_group(comm, tmp_path), collectives.Communicator(comm) as ours:
        found = gradients(comm, psgd.torch.allreduce_hook, ours, steps=1, dtype=kind)
        theirs = gradients(comm, None, None, steps=1, dtype=kind)
        everywhere_the_same(comm, [[g.float() for g in found[0] if g is not None]])
        tolerance = {"float64": 1e-14, "float16": 1e-3, "bfloat16": 1e-2}[dtype]
        same(found, theirs, exactly=dtype == "float64", rtol=tolerance, atol=tolerance / 10)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("thread", ["0", "1"])
@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_rounded_gradients_are_pytorchs(comm, tmp_path, name, thread):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    def reference(state, bucket: torch.distributed.GradBucket):
        return getattr(default_hooks, f"{name}_compress_hook")(state, bucket)

    with pytest.MonkeyPatch.context() as patch, process_group(comm, tmp_path):
        patch.setenv("PSGD_PROGRESS", thread)
        with collectives.Communicator(comm) as ours:
            hook = getattr(psgd.torch, f"{name}_compress_hook")
            found = gradients(comm, hook, ours, steps=1, bucket_cap_mb=1e-4)
        theirs = gradients(comm, reference, None, steps=1, bucket_cap_mb=1e-4)
        everywhere_the_same(comm, found)
        tolerance = 1e-3 if name == "fp16" else 1e-2  # of three, sums are rounded in another order
        same(found, theirs, exactly=comm.size == 2, rtol=tolerance, atol=tolerance / 10)


@pytest.mark.ranks(3)
def test_uneven_inputs_join(comm, tmp_path):
    def final(hook, state):
        module = Net()
        model = nn.parallel.DistributedDataParallel(module)
        if hook:
            model.register_comm_hook(state, hook)
        module.never, module.sometimes = None, None
        model = nn.parallel.DistributedDataParallel(module)
        if hook:
            model.register_comm_hook(state, hook)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        with model.join():
            for step in range(2 + comm.rank):
                optimizer.zero_grad()
                model(batch(comm.rank, step)).square().mean().backward()
                optimizer.step()
        return [[p.detach() for p in module.parameters()]]

    with process_group(comm, tmp_path), collectives.Communicator(comm) as ours:
        same(final(psgd.torch.allreduce_hook, ours), final(None, None), exactly=False, rtol=1e-5, atol=1e-6)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("thread", ["0", "1"])
@pytest.mark.parametrize("what", ["buckets", "hooks"])
def test_ranks_that_differ_raise_one_error(comm, tmp_path, what, thread):
    with pytest.MonkeyPatch.context() as patch, process_group(comm, tmp_path):
        patch.setenv("PSGD_PROGRESS", thread)
        ours = collectives.Communicator(comm)
        module = nn.Sequential(*(nn.Linear(600, 600) for _ in range(4)))  # DDP's first bucket is of 1 MiB
        cap = 0.001 if what == "buckets" and comm.rank == 0 else 25
        model = nn.parallel.DistributedDataParallel(module, bucket_cap_mb=cap, find_unused_parameters=True)
        rounded = what == "hooks" and comm.rank == 1
        model.register_comm_hook(ours, psgd.torch.fp16_compress_hook if rounded else psgd.torch.allreduce_hook)
        with pytest.raises(ContractError) as caught:
            model(torch.ones(2, 600)).sum().backward()
        assert len(set(comm.allgather(str(caught.value)))) == 1
        assert "ranks disagree on a collective call" in str(caught.value)


@pytest.mark.ranks(1)
def test_sparse_gradients_are_refused(comm, tmp_path):
    with process_group(comm, tmp_path), collectives.Communicator(comm) as ours:
        model = nn.parallel.DistributedDataParallel(nn.Embedding(3, 3, sparse=True))
        model.register_comm_hook(ours, psgd.torch.allreduce_hook)
        with pytest.raises(
            UsageError, match=r"a hook expected a bucket of dense real gradients on the CPU or a GPU, got .*spar"
        ):
            model(torch.tensor([1])).sum().backward()


FAILS = """
import sys, torch, psgd
from mpi4py import MPI
from psgd import collectives
psgd.abort_on_exception()
comm = MPI.COMM_WORLD
torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=comm.rank, world_size=comm.size)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(50, 50) for _ in range(9))))
model.register_comm_hook(collectives.Communicator(comm), psgd.torch.allreduce_hook)
def fail(grad):
    raise ArithmeticError("this rank fails in backward")
for step in range(3):
    if step == 2 and comm.rank == 1:
        model.module[0].weight.register_hook(fail)
    model(torch.ones(2, 50)).sum().backward()
print("must not get here")
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_that_fails_in_backward_ends_the_job(job, tmp_path, ranks):
    script = tmp_path / "fails.py"
    script.write_text(FAILS)
    done = job(ranks, [sys.executable, str(script), str(tmp_path / "meet")], timeout=60, check=False)
    assert done.returncode != 0 and "must not get here" not in done.stdout
    assert "ArithmeticError: this rank fails in backward" in done.stderr


def test_names_that_pytorch_has():
    assert {"allreduce_hook", "fp16_compress_hook", "bf16_compress_hook"} <= set(psgd.torch.__all__)
    assert all(callable(getattr(psgd.torch, name)) for name in psgd.torch.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'powerSGD_hook'"):
        psgd.torch.powerSGD_hook  # noqa: B018
