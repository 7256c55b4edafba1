"""`psgd slurm`: writes batch scripts and submits them."""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from psgd.config import TrainConfig
from psgd.config import options as config_options
from psgd.kernels.errors import UsageError
from psgd.launch import options
from psgd.launch.slurm.batch_options import BatchOptions
from psgd.launch.slurm.render import render
from psgd.launch.slurm.templates import KINDS
from psgd.launch.slurm.training import training, value
from psgd.launch.usage.groups import Group
from psgd.launch.whole_numbers import Whole

F = TypeVar("F", bound=Callable[..., Any])


def render_options(function: F) -> F:
    """Decorates a click command with KIND, an option for each field of `BatchOptions`, and train's options after --."""
    function = click.argument("train", nargs=-1, metavar="[-- TRAIN OPTIONS]")(function)
    for option in reversed(fields(BatchOptions)):
        several, number, text = option.default == (), option.type == (int | None), option.metadata["help"]
        shown = isinstance(option.default, str) and "default" not in text
        function = click.option(
            options.flag(option.name),
            type=Whole(0) if number else str,
            multiple=several,
            default=None,
            metavar="N" if number else "TEXT",
            help=text + (f"  [default: {option.default}]" if shown else ""),
        )(function)
    return click.argument("kind", type=click.Choice(list(KINDS)), metavar="KIND")(function)


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def slurm(ctx: click.Context) -> None:
    """Write batch scripts for SLURM, and submit them.

    KIND is one of cpu_parameter_server, gpu_allreduce, easgd_host_master, decentralized_slow_network, array,
    long_job. Options of psgd train go after --, and replace the kind's example.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@slurm.command("render")
@render_options
def render_command(kind: str, train: Sequence[str], **given: Any) -> int:
    """Print a batch script."""
    click.echo(_text(kind, train, given), nl=False)
    return 0


@slurm.command()
@click.option("--wait", is_flag=True, help="Follow the job's log, and exit with the job's exit code.")
@click.option("--dry-run", is_flag=True, help="Print the script without submitting it.")
@render_options
def submit(kind: str, train: Sequence[str], wait: bool, dry_run: bool, **given: Any) -> int:
    """Submit a batch script with sbatch, and print the job's number.

    The script uses the virtual environment and the MPI that this command runs with.
    """
    from psgd.launch.slurm import submit as submitting

    if wait and (kind == "array" or any(re.match("--array=|-a", option) for option in given["sbatch"])):
        raise UsageError("--wait: expected a single job, got an array; `squeue --me` shows its jobs")
    if given["venv"] is None and given["container"] is None and (Path(sys.prefix) / "bin" / "psgd").exists():
        given["venv"] = sys.prefix
    if given["mpi"] is None and given["launcher"] != "mpirun" and given["container"] is None:
        given["mpi"] = submitting.plugin()
    text = _text(kind, train, given)
    if dry_run:
        click.echo(text, nl=False)
        return 0
    job = submitting.submit(text)
    click.echo(job.number)
    if job.cluster:
        click.echo(f"psgd: job {job.number} is on cluster {job.cluster}", err=True)
    return submitting.follow(job) if wait else 0


def _text(kind: str, train: Sequence[str], given: dict[str, Any]) -> str:
    """Renders the script; a wrong option of train is reported now, not when the job starts."""
    from psgd.launch.train import train as command

    def build(words: Sequence[str]) -> TrainConfig:
        flags = command.make_context("psgd train", list(words)).params
        known = config_options()
        return options.build({name: value for name, value in flags.items() if name in known}, flags["config"])

    if given["mpi"] is not None and given["launcher"] == "mpirun":
        raise UsageError("--mpi: only srun takes it; omit it with --launcher mpirun")
    path = value(train, "--config")
    said = {} if path is None else options.read_file(path)
    file = [word for name, found in said.items() for word in (options.flag(name), str(found))]
    words = training(kind, train or None, file) + (["--checkpoint-dir", "checkpoints"] if kind == "long_job" else [])
    build(words)
    for text in given["trial"]:
        try:
            build([*words, *text.split()])
        except (UsageError, click.UsageError) as error:
            wrong = error.format_message() if isinstance(error, click.UsageError) else error
            raise UsageError(f"--trial {text!r}: {wrong}") from None
    chosen = {name: value for name, value in given.items() if value not in (None, ())}
    return render(kind, train or None, file, **chosen)
