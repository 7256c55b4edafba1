"""`psgd bench faults`."""

import json
import random
import statistics
import time

import click

from psgd.kernels.errors import UsageError
from psgd.launch import mpiexec
from psgd.launch.bench.faults import soak
from psgd.launch.output.summary import counted
from psgd.launch.whole_numbers import Whole
from psgd.runtime.ulfm import switch


@click.command()
@click.option(
    "--minutes", default=1.0, show_default=True, type=click.FloatRange(min=0), help="Begin no run after so long."
)
@click.option("--workers", default=3, show_default=True, type=Whole(2), help="Of each run.")
@click.option("--seed", default=0, show_default=True, type=Whole(0), help="Of who is killed, and when.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def faults(minutes: float, workers: int, seed: int, as_json: bool) -> int:
    """Kill workers of training runs at random, and check each run.

    The strategies that survive it take turns. After each run: it ended by itself, every sample of every epoch was
    applied exactly once, it knows who died, and its accuracy is as it should be. The exit code is 1 if that did not
    hold of all runs.
    """
    mpiexec.library()
    if not switch.built_in():
        raise UsageError("faults: expected an MPI with ULFM, as Open MPI 5 is: others end a job when a rank dies")
    rng, names, outcomes = random.Random(seed), soak.strategies(), list[soak.Outcome]()
    limit = time.monotonic() + 60 * minutes
    while not outcomes or time.monotonic() < limit:
        outcome = soak.run(names[len(outcomes) % len(names)], workers, rng)
        outcomes.append(outcome)
        for text in outcome.wrong:
            click.echo(f"{outcome.strategy}: ranks {outcome.killed} killed: {text}", err=True)
    detected = sorted(seconds for each in outcomes for seconds in each.detected_s)
    wrong, kills = sum(bool(each.wrong) for each in outcomes), sum(len(each.killed) for each in outcomes)
    found = {
        "runs": len(outcomes),
        "kills": kills,
        "wrong": wrong,
        "detected_s": {"median": statistics.median(detected), "max": detected[-1]} if detected else None,
    }
    if as_json:
        click.echo(json.dumps(found))
    else:
        told = "none told of"
        if detected:
            told = f"told of after {statistics.median(detected):.3f} s at the median, {detected[-1]:.3f} s at most"
        click.echo(f"{counted(len(outcomes), 'run')}, {counted(kills, 'kill')}, {told}")
        click.echo(f"{wrong} wrong" if wrong else "all as they should be")
    return int(wrong > 0)
