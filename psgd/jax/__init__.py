"""Training of JAX's pytrees: `psgd.jax.wrap` puts parameters into one vector for `psgd.connect`, and compiles a loss.

Owns the leaves' places in the vector, JAX's arrays over its memory, the compiled gradient, and the state (BatchNorm's
statistics) of all ranks. JAX is imported on the first use. May import every room but `training`. Begin with `tree.py`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from psgd.kernels.errors import UsageError

if TYPE_CHECKING:
    from psgd.jax.tree import WrappedTree


def wrap(
    params: Any,
    loss_fn: Callable[..., Any] | None = None,
    *,
    state: Any = None,
    has_aux: bool = False,
    trainable: Any = True,
    final_state: str = "average",
) -> "WrappedTree":
    """Copies all trainable leaves of a pytree into one flat vector, over which JAX computes without further copies.

    Hand the result to `psgd.connect` in place of `params`. The vector is float32, or float64 where all trainable leaves
    are. It has float32 values of float16 and bfloat16 leaves, which psgd trains; the leaves are rounded from them
    inside the compiled gradient.

        model = psgd.jax.wrap(params, loss_fn)  # loss_fn(params, x, y): the mean loss over a batch
        with psgd.connect(comm, model, strategy="allreduce", lr=0.1) as ps:
            for x, y in my_shard(ps.worker, ps.workers):
                loss, grads = model.value_and_grad(x, y)
                ps.step(samples=len(x), loss=float(loss))
        predict(model.params, x)

    Args:
        params: a pytree of arrays with at least one trainable leaf, on one device.
        loss_fn: of the parameters and what `value_and_grad` is called with; with `state`, of parameters, state and
            that. It returns a scalar, with `state` a pair of the scalar and the new state, and with `has_aux` a pair of
            all that and something else, as `jax.value_and_grad` takes it. None: set `grads` before each step.
        state: a pytree of arrays that each step replaces, and which is not trained.
        has_aux: whether `loss_fn` returns something else too.
        trainable: what is trained: a pytree of bools, like `params` or like its top, or a function from `params` to
            one. Other leaves are frozen, with the first worker's values on all ranks, and need not be real numbers.
        final_state: what every rank has in `state` after the block: "average", the workers' mean (of whole numbers,
            and of workers without a step, nothing: the first worker's); "broadcast", the first worker's; "local", each
            worker's own. All workers start from the first worker's, and do not exchange it between.

    Raises:
        UsageError: JAX is missing, or there is something in the pytrees that cannot be trained this way.
    """
    try:
        from psgd.jax.tree import WrappedTree
    except ModuleNotFoundError as error:
        if error.name != "jax":
            raise
        raise UsageError("psgd.jax: JAX is not installed: pip install 'psgd[jax]'") from None
    return WrappedTree(params, loss_fn, state, has_aux, trainable, final_state)


__all__ = ["wrap"]
