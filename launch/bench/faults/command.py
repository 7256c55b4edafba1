"""`psgd bench faults`."""

import json
import random
import time
from typing import Any

import click

from psgd.kernels.errors import UsageError
from psgd.kernels.notice import counted
from psgd.launch import mpiexec, ranks
from psgd.launch.bench.faults import soak
from psgd.launch.bench.faults.medians import SLOWER, by_strategy, table, totals
from psgd.launch.whole_numbers import Whole
from psgd.runtime.ulfm import switch


@click.command()
@click.option(
    "--minutes", default=1.0, show_default=True, type=click.FloatRange(min=0), help="Begin no run after so long."
)
@click.option("--kills", default=0, type=Whole(0), help="Begin no run after so many kills; 0 is no limit.")
@click.option(
    "--kinds", default="workers", show_default=True, metavar="KIND,...", help=f"Who dies: {', '.join(soak.KINDS)}."
)
@click.option("--strategies", default=None, metavar="NAME,...", help="Of the runs.  [default: all that survive it]")
@click.option("--workers", default=3, show_default=True, type=Whole(2), help="Of each run.")
@click.option("--epochs", default=24, show_default=True, type=Whole(1), help="Of each run.")
@click.option("--seed", default=0, show_default=True, type=Whole(0), help="Of who is killed, and when.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def faults(
    minutes: float,
    kills: int,
    kinds: str,
    strategies: str | None,
    workers: int,
    epochs: int,
    seed: int,
    as_json: bool,
) -> int:
    """Kill ranks of training runs at random, and check each run.

    The strategies that survive it take turns. After each run: it ended by itself, every sample of every epoch was
    applied exactly once, it knows who died, and its accuracy is as it should be. Where there are servers, no push that
    they had acknowledged is lost, and none was applied twice. The exit code is 1 if that did not hold of all runs, or
    if one in two runs of a strategy took more than 1.2 times as long as it would have undisturbed, with those that were
    left.
    """
    mpiexec.library()
    ranks.refuse("bench faults")
    turns = _turns(kinds, strategies)
    if not switch.built_in():
        raise UsageError("faults: expected an MPI with ULFM, as Open MPI 5 is: others end a job when a rank dies")
    rng, outcomes = random.Random(seed), list[soak.Outcome]()
    limit = time.monotonic() + 60 * minutes
    while not outcomes or (
        time.monotonic() < limit and (not kills or sum(len(each.killed) for each in outcomes) < kills)
    ):
        kind, strategy = turns[len(outcomes) % len(turns)]
        outcome = soak.run(strategy, workers, rng, kind, epochs)
        outcomes.append(outcome)
        for text in outcome.wrong:
            click.echo(f"{outcome.strategy}, {kind}: ranks {outcome.killed} killed: {text}", err=True)
    found, rows = totals(outcomes), by_strategy(outcomes)
    if as_json:
        click.echo(json.dumps(found | {"by_strategy": rows}))
    else:
        click.echo(table(rows))
        click.echo(f"{counted(found['runs'], 'run')}, {counted(found['kills'], 'kill')}, {_said(found)}{_lost(found)}")
    return int(found["wrong"] > 0 or bool(_slow(rows)))


def _said(found: dict[str, Any]) -> str:
    return f"{found['wrong']} wrong" if found["wrong"] else "all as they should be"


def _lost(found: dict[str, Any]) -> str:
    if found["lost"] is None:
        return ""
    return f"; {found['lost']} of {counted(found['acknowledged'], 'acknowledged push', 'es')} lost"


def _slow(rows: dict[str, dict[str, Any]]) -> list[str]:
    """Those that took too long; says so."""
    slow = [name for name, row in rows.items() if row["slower"] and row["slower"]["median"] > SLOWER]
    for name in slow:
        click.echo(f"{name}: more than {SLOWER:g} times as long as undisturbed, at the median", err=True)
    return slow


def _turns(kinds: str, strategies: str | None) -> list[tuple[str, str]]:
    """Kinds and strategies of the runs in turn.

    Raises:
        UsageError: no such kind, or a strategy that does not survive it.
    """
    turns = []
    wanted = None if strategies is None else [name.strip() for name in strategies.split(",")]
    for kind in (text.strip() for text in kinds.split(",")):
        if kind not in soak.KINDS:
            raise UsageError(f"--kinds: expected some of {', '.join(soak.KINDS)}, got {kind!r}")
        there = soak.strategies(kind)
        for name in there if wanted is None else wanted:
            if name not in there:
                raise UsageError(f"--strategies: expected some of {', '.join(there)} with {kind}, got {name!r}")
            turns.append((kind, name))
    return turns
