"""What `psgd bench train` compares: every strategy at its documented setting, and the PyTorch peer of each."""

from psgd.strategies import catalog

_WAIT_FOR_NOBODY = ("async", "hogwild", "decentralized")
AGAINST = {"single": "torch"} | {
    name: "torch-hogwild" if name in _WAIT_FOR_NOBODY else "ddp" for name in catalog.STRATEGIES
}
STRATEGIES = tuple(AGAINST)
PEERS = ("torch", "ddp", "torch-hogwild", "torch-graph")
ON = {"cpu": ("torch", "ddp", "torch-hogwild"), "cuda": ("torch", "torch-graph", "ddp")}
"""The peers that there are on a device."""
ALONE = ("single", "torch", "torch-graph")
"""Those of one process."""


def setting(name: str, workers: int) -> dict[str, object]:
    """The options of `psgd train` that make a strategy's documented setting; what they leave out is its default.

    Where a step is made of all workers' samples, or each push is divided by the workers, the learning rate is
    multiplied by their number (linear scaling): an epoch has that many fewer steps.

    Args:
        name: one of STRATEGIES.
        workers: of the run; `single` has one whatever this is.
    """
    settings: dict[str, dict[str, object]] = {
        "sync": {"scale-lr": True},
        "softsync": {"softsync": max(min(2, workers), workers // 2)},
        "ssp": {"staleness": 3, "scale-lr": True},
        "allreduce": {"scale-lr": True},
        "averaging": {"period": 8},
        "easgd": {"period": 8},
    }
    return settings.get(name, {})


def rate(peer: str, lr: float, workers: int) -> float:
    """A peer's rate: that of the strategy which takes the same steps, so `ddp` has the one of `sync`."""
    return lr * workers if peer == "ddp" else lr


def words(options: dict[str, object]) -> list[str]:
    """Options as a command line has them."""
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items()]


def injected(name: str, inject: str) -> str:
    """The stragglers of a run. One process has no others to hold up or be passed by, so only `compute` is left."""
    if name not in ALONE:
        return inject
    return ",".join(part for part in inject.split(",") if not part.strip().startswith("slow"))
