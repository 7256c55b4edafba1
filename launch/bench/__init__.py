"""`psgd bench`: benchmarks that verify, then measure beside a peer in the same run."""

import click

from psgd.launch.bench.pushpull import pushpull
from psgd.launch.bench.train import train


@click.group()
def bench() -> None:
    """Verify and measure, beside peers in the same run."""


bench.add_command(pushpull)
bench.add_command(train)
