"""`psgd bench`: benchmarks that verify, then measure beside a peer in the same run.

Each benchmark is a folder that begins with `command.py`; `peers` holds what psgd is measured against. `problem.py`,
`sizes.py`, `stats.py` and `job.py` are for all of them. Begin with `collective/command.py`.
"""

import click

from psgd.launch.bench.alone.command import peers
from psgd.launch.bench.codec.command import codec
from psgd.launch.bench.collective.command import COMMANDS
from psgd.launch.bench.ddp.command import ddp
from psgd.launch.bench.faults.command import faults
from psgd.launch.bench.gpt.command import gpt
from psgd.launch.bench.gpt2.command import gpt2
from psgd.launch.bench.kernels.command import kernels
from psgd.launch.bench.offload.command import offload
from psgd.launch.bench.parallel.command import parallel
from psgd.launch.bench.pipeline.command import pipeline
from psgd.launch.bench.pushpull.command import pushpull
from psgd.launch.bench.sharded.command import sharded
from psgd.launch.bench.train.command import train
from psgd.launch.usage.groups import Group


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def bench(ctx: click.Context) -> None:
    """Run benchmarks: verify psgd, and compare it with peers in the same run."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


bench.add_command(pushpull)
bench.add_command(codec)
bench.add_command(train)
bench.add_command(ddp)
bench.add_command(gpt)
bench.add_command(gpt2)
bench.add_command(kernels)
bench.add_command(offload)
bench.add_command(parallel)
bench.add_command(pipeline)
bench.add_command(sharded)
bench.add_command(peers)
bench.add_command(faults)
for command in COMMANDS:
    bench.add_command(command)
