"""The `psgd` command. Subcommands load when used, so that help is quick and starts nothing."""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from psgd.kernels.errors import OutputError, UsageError
from psgd.kernels.notice import say
from psgd.launch import cores, ranks, surroundings, threads
from psgd.launch.output import merged, standard_streams
from psgd.launch.usage import groups, synonyms

_COMMANDS = {
    "train": ("psgd.launch.train", "train", "Train a model: starts a server and workers, or is one of them."),
    "estimate": ("psgd.launch.view.estimate", "estimate", "Estimate the memory of each rank of a run."),
    "bench": ("psgd.launch.bench", "bench", "Run benchmarks: verify psgd, and compare it with peers."),
    "doctor": ("psgd.launch.doctor", "doctor", "Show what works here, and how to fix the rest."),
    "checkpoint": ("psgd.launch.checkpoint", "checkpoint", "Show, verify and export checkpoints."),
    "plot": ("psgd.launch.plot.command", "plot", "Draw plots from the logs of psgd train."),
    "top": ("psgd.launch.view.top", "top", "Show a running job: workers, clocks, staleness, throughput, waiting."),
    "trace": ("psgd.launch.view.trace", "trace", "Summarize the trace of a run, also of one that was aborted."),
    "slurm": ("psgd.launch.slurm.command", "slurm", "Write batch scripts for SLURM, and submit them."),
}

_MAY_BE_EMPTY = ("--inject", "--mpiexec-args")  # their default is empty
_ALONE = (
    ["checkpoint"],
    ["estimate"],
    ["plot"],
    ["top"],
    ["trace"],
    ["slurm"],
    ["bench", "codec"],
    ["bench", "kernels"],
)
"""Commands that are never ranks: each process says what it has to say."""


class LazyGroup(groups.Group):
    """A group that knows its commands' names and one-line helps, and imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the help."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports a command."""
        if cmd_name not in _COMMANDS:
            return None
        module, name, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in _COMMANDS.items()])


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        versions = importlib.import_module("psgd.launch.doctor.versions")
        click.echo("\n".join(versions.lines()))
        ctx.exit()


@click.group(cls=LazyGroup, invoke_without_command=True)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the versions of psgd, MPI and CUDA.",
)
@click.pass_context
def psgd(ctx: click.Context) -> None:
    """Distributed SGD over MPI: parameter server and collectives."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def fail(message: str, code: int = 2, quiet: bool = False) -> NoReturn:
    """Prints `psgd: error: message` on one line of stderr, and exits with `code`; `quiet` with 0: rank 0 says it."""
    if quiet:
        sys.exit(0)
    code = standard_streams.finish(code)
    say(f"error: {' '.join(message.split())}")
    sys.exit(code)


def _quiet(arguments: Sequence[str]) -> bool:
    """Whether this is a rank, of a command that runs as ranks, and another one says what concerns all of them."""
    words = [word for word in arguments if not word.startswith("-")]
    alone = words[:1] in _ALONE or words[:2] in _ALONE
    return not alone and not ranks.speaks()


def _only_asks(arguments: Sequence[str]) -> bool:
    return not arguments or any(word in ("--help", "--version") for word in arguments)


def _refuse_empty(words: Sequence[str]) -> None:
    """Refuses an empty text where a value belongs, as a script passes it whose variable is not set."""
    for before, word in zip(["", *words], words, strict=False):
        name, equals, value = word.partition("=") if word.startswith("--") else (before, "=", word)
        if equals and not value.strip() and name not in _MAY_BE_EMPTY:
            what = name if name.startswith("-") else "argument"
            fail(f"{what}: expected a value, got an empty text {value!r}; omit it")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the `psgd` command on `arguments`, by default the process's own, and exits.

    Exit codes: 0; 1 where stdout cannot be written; 2 for a wrong option or argument, said in one line; 130 after
    Ctrl-C; else the command's.
    """
    standard_streams.prepare()
    words = sys.argv[1:] if arguments is None else list(arguments)
    ranks.leave()
    if ranks.place() is not None:
        merged.follow()
    cores.bind()
    quiet = _quiet(words)
    threads.limit()
    surroundings.prepare()
    # Else Numba lets colorama, where that is installed, write to stdout as the process ends: after our JSON.
    os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")
    os.environ.setdefault("UCX_DEBUG_SIGNO", "0")  # else UCX takes SIGHUP for its debugger, and no hangup ends a rank
    _refuse_empty(words)
    if quiet and _only_asks(words):
        sys.exit(0)
    try:
        surroundings.check()
    except UsageError as error:
        fail(str(error))  # each rank for itself: it may be gone on one node only
    try:
        code = psgd.main(args=words, prog_name="psgd", standalone_mode=False)
    except click.exceptions.Exit as ending:
        code = ending.exit_code
    except click.NoSuchOption as error:
        fail(synonyms.of(error), quiet=quiet)
    except click.ClickException as error:
        fail(synonyms.with_help(error), quiet=quiet)
    except UsageError as error:
        fail(str(error), quiet=quiet)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except OutputError as error:
        sys.exit(standard_streams.give_up(error))
    except MemoryError as error:
        fail(f"not enough memory: {error}", 1)
    sys.exit(standard_streams.finish(code if isinstance(code, int) else 0))
