"""The strategies by name: where each one is, what it needs and which options it has. Imports none of them.

A strategy is one file with a function `create(workers, **options)`, which gets all options of its entry, checked. With
servers it returns a `psgd.server.policy.Policy`; without, a function from `psgd.worker.context.RunContext` to a
`psgd.worker.interface.Worker`.
"""

import difflib
import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from psgd.kernels.errors import UsageError
from psgd.runtime.option import Option, above_zero, below_one, from_zero, one_of, switch, whole


@dataclass(frozen=True)
class Strategy:
    """What is known of a strategy before its module is imported.

    Attributes:
        module: has `create`.
        own: the options that it has beside those of every strategy, by name.
        servers: some ranks hold the parameters; else all ranks are workers.
        compressible: it sends gradients or updates, which a codec can compress.
        codec: of its updates where the user chooses none; None sends them whole.
        averages: an option and its value with which it sends whole parameters instead.
        on_device: it works on parameters on a GPU; else they are copied to the host and back at each step.
        survives: a run goes on without a worker that dies, where MPI does (`psgd.runtime.ulfm`).
    """

    module: str
    own: Mapping[str, Option] = field(default_factory=dict)
    servers: bool = False
    compressible: bool = False
    codec: str | None = None
    averages: tuple[str, object] | None = None
    on_device: bool = False
    survives: bool = False

    @property
    def options(self) -> dict[str, Option]:
        """All its options by name, those of every strategy last."""
        return {**self.own, **COMMON}

    def sends_updates(self, options: Mapping[str, Any]) -> bool:
        """Whether what it sends with these options can be compressed."""
        return self.compressible and (self.averages is None or self.averages not in options.items())

    def default_codec(self, options: Mapping[str, Any]) -> str | None:
        """The codec with these options where the user chooses none."""
        return self.codec if self.sends_updates(options) else None


_PEERS = re.compile(r"all|ring|pairs|random:([2-9]|[1-9]\d{1,4})")
_PERIOD = whole(1, 8, "steps between two exchanges.")

COMMON = {"accumulate": whole(1, 1, "steps whose gradients are combined into one update.")}
"""Options of every strategy, which it need not know of: workers do it (`psgd.worker.accumulation`)."""

STRATEGIES: dict[str, Strategy] = {
    "sync": Strategy("psgd.strategies.sync", servers=True, compressible=True, survives=True),
    "async": Strategy("psgd.strategies.async_", servers=True, compressible=True, survives=True),
    "softsync": Strategy(
        "psgd.strategies.softsync",
        {"softsync": whole(1, 1, "gradients in one step.")},
        servers=True,
        compressible=True,
        survives=True,
    ),
    "ssp": Strategy(
        "psgd.strategies.ssp",
        {"staleness": whole(0, 3, "how many steps a worker may be ahead of the slowest.")},
        servers=True,
        compressible=True,
        survives=True,
    ),
    "allreduce": Strategy(
        "psgd.strategies.allreduce",
        compressible=True,
        on_device=True,
        survives=True,
    ),
    "averaging": Strategy(
        "psgd.strategies.averaging",
        {
            "period": _PERIOD,
            "average_momentum": switch(True, "average the momentum too.", shown="on"),
            "local_from": from_zero(0.0, "initial epochs, which have a period of 1."),
            "outer_lr": above_zero(1.0, "learning rate of the outer step."),
            "outer_momentum": below_one(0.0, "Nesterov momentum of the outer step."),
        },
        on_device=True,
        survives=True,
    ),
    "easgd": Strategy(
        "psgd.strategies.easgd.easgd",
        {
            "period": _PERIOD,
            "easgd_order": one_of(
                ("sync", "round-robin", "async", "hogwild"), "sync", "how workers exchange with the centre."
            ),
            "rho": above_zero(None, "strength of the elastic force.", shown="0.9 / (lr * workers)"),
        },
        on_device=True,
        survives=True,
    ),
    "hogwild": Strategy(
        "psgd.strategies.hogwild.hogwild",
        {
            "period": replace(_PERIOD, default=64),
            "count_lost": switch(False, "count lost updates (for tests).", hidden=True),
        },
        survives=True,
    ),
    "decentralized": Strategy(
        "psgd.strategies.decentralized.decentralized",
        {
            "peers": Option(
                str,
                "all",
                "who sends to whom: all, ring, random:D or pairs.",
                _PEERS.fullmatch,
                "all, ring, random:D with D of 2 or more, or pairs",
            ),
            "window": whole(1, 64, "how many updates a worker may be ahead of the others."),
        },
        compressible=True,
        codec="threshold",
        averages=("peers", "pairs"),
        survives=True,
    ),
}


def find(name: object) -> Strategy:
    """The strategy of that name.

    Raises:
        UsageError: there is none.
    """
    if not isinstance(name, str) or name not in STRATEGIES:
        raise UsageError(f"strategy: expected one of {', '.join(STRATEGIES)}, got {name!r}")
    return STRATEGIES[name]


def default_servers(name: object, size: int) -> int:
    """How many of `size` ranks hold the parameters where the user does not say; 1 for a name that is unknown."""
    known = STRATEGIES.get(name) if isinstance(name, str) else None
    return 1 if size > 1 and (known is None or known.servers) else 0


def compressible() -> list[str]:
    """The strategies that send gradients or updates."""
    return [name for name, strategy in STRATEGIES.items() if strategy.compressible]


def with_option(option: str) -> dict[str, Option]:
    """The strategies that have an option of their own by that name, and what it is there."""
    return {name: each.options[option] for name, each in STRATEGIES.items() if option in each.options}


def own_options() -> dict[str, Option]:
    """The strategies' options, each once, without hidden ones; None is the strategy's default."""
    shown = (name for each in STRATEGIES.values() for name, option in each.own.items() if not option.hidden)
    return {name: _described(with_option(name)) for name in dict.fromkeys([*shown, *COMMON])}


def _described(by_strategy: Mapping[str, Option]) -> Option:
    """An option of several strategies as one: its help says which, and the default of each."""
    first, usual = next(iter(by_strategy.values())), next(map(_default, by_strategy.values()))
    others = [f"; {name} {_default(each)}" for name, each in by_strategy.items() if _default(each) != usual]
    text = f"{', '.join(by_strategy)}: {first.help}"
    if len(by_strategy) == len(STRATEGIES):
        text = first.help.capitalize()
    return replace(first, default=None, help=text, shown=usual + "".join(others))


def _default(option: Option) -> str:
    return f"{option.default:g}" if isinstance(option.default, float) else option.default_text()


_ELSEWHERE = {"learning_rate": "lr", "optimizer": "rule"}
"""What the command or other libraries call an argument of `psgd.connect`."""


def create(name: str, workers: int, others: Sequence[str] = (), /, **chosen: Any) -> Any:
    """What decides a run of that strategy with so many workers.

    Args:
        name: of the strategy.
        workers: how many.
        others: options that are not the strategy's, which may have been meant.
        **chosen: the strategy's own options.

    Returns:
        A `Policy`, or for a strategy without servers a function from
        `RunContext` to a `Worker`.

    Raises:
        UsageError: no such strategy, or an option that it does not take or that is out of range.
    """
    strategy = find(name)
    known = list(strategy.options)
    if unknown := sorted(set(chosen) - set(known)):
        near = difflib.get_close_matches(unknown[0], [*known, *others], n=1)
        near = [_ELSEWHERE[unknown[0]]] if unknown[0] in _ELSEWHERE and others else near
        hint = f"; did you mean {near[0]}?" if near else ""
        if able := with_option(unknown[0]):
            hint = f"; {unknown[0]} is an option of {' and '.join(able)}"
        own = [key for key in known if key != "accumulate"]
        raise UsageError(f"strategy {name}: expected {_listed(own)}, got {_listed(unknown)}{hint}")
    values = {key: option.default for key, option in strategy.options.items()}
    for key, value in chosen.items():
        if value is not None or values[key] is not None:
            values[key] = strategy.options[key].check(key, value)
    values = {key: values[key] for key in strategy.own}
    return importlib.import_module(strategy.module).create(workers, **values)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "no options of its own"
