"""Training of PyTorch's modules: `psgd.torch.wrap` lays a module's parameters out in one vector for `psgd.connect`.

Owns the slots of parameters and gradients in the vectors, what autograd's hooks announce, and the buffers (BatchNorm's
statistics) of all ranks; communication hooks for PyTorch's DistributedDataParallel; a sampler for its DataLoader;
modules in pieces, as stages of a pipeline and by tensor.
PyTorch is imported on the first use. May import every room but `training`. Begin with `wrapped.py`, for hooks with
`hooks.py`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from psgd.kernels.errors import UsageError

if TYPE_CHECKING:
    from psgd.torch.codec_hooks import onebit_hook, threshold_hook, topk_hook
    from psgd.torch.hooks import allreduce_hook, bf16_compress_hook, fp16_compress_hook
    from psgd.torch.optimizer.distributed import DistributedOptimizer as Distributed
    from psgd.torch.pieces.by_tensor import cut_by_tensor
    from psgd.torch.pieces.cut_linears import column_linear, row_linear
    from psgd.torch.pieces.module_pipeline import pipeline
    from psgd.torch.sharded.shard_module import shard
    from psgd.torch.worker_sampler import WorkerSampler as Sampler
    from psgd.torch.wrapped import Wrapped

_PLACES = {
    **{name: ("hooks", name) for name in ("allreduce_hook", "bf16_compress_hook", "fp16_compress_hook")},
    **{name: ("codec_hooks", name) for name in ("onebit_hook", "threshold_hook", "topk_hook")},
    "Sampler": ("worker_sampler", "WorkerSampler"),
    "pipeline": ("pieces.module_pipeline", "pipeline"),
    "shard": ("sharded.shard_module", "shard"),
    "cut_by_tensor": ("pieces.by_tensor", "cut_by_tensor"),
    **{name: ("pieces.cut_linears", name) for name in ("column_linear", "row_linear")},
}
"""Where names are that need PyTorch as soon as they are defined."""


def wrap(module: Any, buffers: str = "average") -> "Wrapped":
    """Lays all trainable parameters of a module out as views of one flat vector, and their gradients of another.

    Hand the result to `psgd.connect` in place of `params`; the module itself is used as before. Frozen parameters stay
    where they are (with the first worker's values on all ranks), and a parameter with several names has one place. The
    vectors are float32, or float64 where all trainable parameters are. Of float16 and bfloat16 parameters the vector
    has float32 copies, which psgd trains; the parameters are rounded from them after each step. Gradients from before
    are dropped.

        model = psgd.torch.wrap(module)
        with psgd.connect(comm, model, strategy="allreduce", lr=0.1) as ps:
            for x, y in my_shard(ps.worker, ps.workers):
                module.zero_grad()
                loss = criterion(module(x), y)
                loss.backward()
                ps.step(samples=len(x), loss=loss.item())

    Args:
        module: a `torch.nn.Module` with at least one trainable parameter; all of them on the CPU, or on one GPU.
        buffers: what every rank has in the module's buffers after the block: "average", the workers' mean (of whole
            numbers, and of workers without a step, nothing: the first worker's); "broadcast", the first worker's;
            "local", each worker's own. All workers start from the first worker's, and do not exchange them between.

    Raises:
        UsageError: PyTorch is missing, or there is something in the module that cannot be trained this way.
    """
    made: Wrapped = _part("wrapped").Wrapped(module, buffers)
    return made


def DistributedOptimizer(
    optimizer: Any,
    comm: Any,
    *,
    module: Any = None,
    strategy: str = "sync",
    buffers: str = "average",
    **options: Any,
) -> "Distributed":
    """Makes the step of an optimizer of `torch.optim` a strategy's, for a loop that exists already.

    The rule, the parameter groups, learning-rate schedulers, `GradScaler`, autocast and clipping of gradients stay
    PyTorch's. The result is a `torch.optim.Optimizer` and a context manager, in whose block it is used on workers;
    servers skip the body at its first use of the optimizer.

        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        optimizer = psgd.torch.DistributedOptimizer(optimizer, comm, module=model, strategy="ssp")
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
        with optimizer:
            for x, y in my_shard(optimizer.worker, optimizer.workers):
                optimizer.zero_grad()
                criterion(model(x), y).backward()
                optimizer.step()
                scheduler.step()

    Creating is collective over `comm`, with the same model and optimizer on all ranks. docs/pytorch.md has what each
    strategy does with the rule.

    Args:
        optimizer: of `torch.optim`, with all trainable parameters. Not to be used itself afterwards.
        comm: any intracommunicator of mpi4py.
        module: the module that has these parameters, so that its buffers and frozen parameters are exchanged and saved
            too; None: neither is touched.
        strategy: as of `psgd.connect`.
        buffers: as of `wrap`.
        **options: of `psgd.connect`, but for those of the rule: lr, rule, momentum, weight_decay.

    Raises:
        UsageError: something that cannot be; the same on all ranks.
    """
    made: Distributed = _part("optimizer.distributed").DistributedOptimizer(
        optimizer, comm, module=module, strategy=strategy, buffers=buffers, options=options
    )
    return made


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PLACES[name]
    return getattr(_part(module), attribute)


def _part(name: str) -> Any:
    """A module of this room, which imports PyTorch."""
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError("psgd.torch: PyTorch is not installed: pip install 'psgd[torch]'") from None


__all__ = [
    "DistributedOptimizer",
    "Sampler",
    "allreduce_hook",
    "bf16_compress_hook",
    "column_linear",
    "cut_by_tensor",
    "fp16_compress_hook",
    "onebit_hook",
    "pipeline",
    "row_linear",
    "shard",
    "threshold_hook",
    "topk_hook",
    "wrap",
]
