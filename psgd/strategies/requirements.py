"""Which options go together with a strategy, for the command and for `psgd.connect` alike."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from psgd.kernels.codecs.catalog import CODECS
from psgd.kernels.errors import UsageError
from psgd.optim.catalog import RULES
from psgd.runtime.option import either
from psgd.strategies import catalog


class Spelling(NamedTuple):
    """How messages write options.

    Attributes:
        name: an option, from its name.
        given: an option that has this value, where the message begins.
        assigned: an option with a value that it should have.
    """

    name: Callable[[str], str]
    given: Callable[[str, object], str]
    assigned: Callable[[str, object], str]


LIBRARY = Spelling(lambda name: name, lambda name, value: name, lambda name, value: f"{name}={value}")


def check(name: str, values: Mapping[str, Any], own: Mapping[str, Any], spell: Spelling = LIBRARY) -> None:
    """Refuses options that do not go together.

    Args:
        name: the strategy's.
        values: options by name: servers, staleness_lr, record, replay, compress, density, compress_warmup,
            compress_sync, and optimizer where it is a name. None, 0 and "" are options that were not given.
        own: the strategy's own options that were given.
        spell: how messages write options.

    Raises:
        UsageError: the first that does not fit.
    """
    strategy = catalog.find(name)
    if not strategy.servers:
        if values["servers"]:
            raise UsageError(f"{spell.given('servers', values['servers'])}: strategy {name} has none; omit it")
        if values["staleness_lr"] != "none" or values["record"] or values["replay"]:
            names = ", ".join(map(spell.name, ("staleness_lr", "record", "replay")))
            raise UsageError(f"{names}: strategy {name} has no servers to do that")
    _check_compression(name, strategy, values, own, spell)


def check_alone(values: Mapping[str, Any], spell: Spelling = LIBRARY) -> None:
    """Refuses on a single rank what would have no effect there: nothing is sent, and there is no order to follow.

    A run that resumes has the options of the one that it resumes, so it may have those of more ranks, but not write or
    follow an order.

    Raises:
        UsageError: the first such option.
    """
    for name in ("record", "replay"):
        if values[name] is not None:
            raise UsageError(
                f"{spell.name(name)}: a single rank's pushes have one order only: omit it, or start more ranks"
            )
    if values["resume"]:
        return
    for name in ("compress", "density", "compress_warmup", "compress_sync"):
        if values[name] not in (None, "none", 0):
            raise UsageError(
                f"{spell.given(name, values[name])}: a single rank sends nothing that could be compressed: omit it, "
                "or start more ranks"
            )


def _check_compression(
    name: str, strategy: catalog.Strategy, values: Mapping[str, Any], own: Mapping[str, Any], spell: Spelling
) -> None:
    compress, optimizer = values["compress"], values.get("optimizer", "sgd")
    subject = spell.given("compress", compress)
    if compress not in (None, "none"):
        if not strategy.compressible:
            able = ", ".join(catalog.compressible())
            raise UsageError(f"{subject}: strategy {name} averages parameters, expected one of {able}")
        if not strategy.sends_updates(own):
            assert strategy.averages is not None
            raise UsageError(f"{subject}: {spell.assigned(*strategy.averages)} averages whole parameters; omit it")
    elif strategy.codec and strategy.sends_updates(own):  # it sends updates even where no codec compresses them
        subject = spell.given("strategy", name)
    else:
        optimizer = "sgd"
    if not RULES[optimizer].before_codec:
        able = either(rule for rule, entry in RULES.items() if entry.before_codec)
        raise UsageError(f"{subject}: expected {spell.assigned('optimizer', able)}, got {optimizer}")
    if compress is None and strategy.default_codec(own) is None:
        for option in ("density", "compress_warmup", "compress_sync"):
            if values[option]:
                codecs = spell.assigned("compress", either(CODECS))
                raise UsageError(f"{spell.name(option)}: expected {codecs} with it")
