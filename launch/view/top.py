"""`psgd top`: a running job, from the log that it writes: drawn again and again on a terminal, once elsewhere."""

import os
import shutil
import sys
import time
from pathlib import Path

import click

from psgd.kernels.errors import DataError
from psgd.launch.view.job_log import JobLog
from psgd.launch.view.job_table import table

_HOME, _CLEAR_BELOW, _ALTERNATE, _USUAL = "\033[H", "\033[J", "\033[?1049h\033[?25l", "\033[?25h\033[?1049l"


@click.command()
@click.argument("log", metavar="LOG")
@click.option("--once", is_flag=True, help="Print the table once, as where stdout is no terminal.")
@click.option("--every", default=1.0, show_default=True, metavar="SECONDS", help="Seconds between two looks.")
def top(log: str, once: bool, every: float) -> None:
    """Show a running job: its workers' clocks, staleness, throughput and waiting.

    LOG is the file of psgd train --log, or a folder: its newest .jsonl file. Ctrl-C, or the end of the run, ends it.
    """
    if not 0.1 <= every <= 3600:
        raise DataError(f"--every: expected seconds from 0.1 to 3600, got {every:g}")
    path = find(Path(log))
    job = JobLog(path)
    if once or not sys.stdout.isatty():
        job.look()
        click.echo("\n".join(table(job, None)))
        return
    try:
        sys.stdout.write(_ALTERNATE)
        while True:
            job.look()
            _draw(table(job, os.stat(path).st_mtime if path.exists() else None))
            if job.ended:
                break
            time.sleep(every)
    except KeyboardInterrupt:
        pass
    finally:
        sys.stdout.write(_USUAL)
        sys.stdout.flush()
    click.echo("\n".join(table(job, None)))


def find(path: Path) -> Path:
    """The log that a path means.

    Raises:
        DataError: no such file, or no log in a folder.
    """
    if path.is_dir():
        logs = sorted(path.glob("*.jsonl"), key=lambda each: each.stat().st_mtime)
        if not logs:
            raise DataError(f"log {path}: expected a folder with a .jsonl file of psgd train --log, found none")
        return logs[-1]
    if not path.is_file():
        raise DataError(
            f"log {path}: expected the file of psgd train --log, or a folder with it; there is no such file"
        )
    return path


def _draw(lines: list[str]) -> None:
    """Overwrites the screen in one write, as far as it is large."""
    size = shutil.get_terminal_size()
    shown = [line[: size.columns - 1] for line in lines[: size.lines - 1]]
    if len(lines) > len(shown):
        shown[-1] = f"... {len(lines) - len(shown) + 1} more lines"[: size.columns - 1]
    sys.stdout.write(_HOME + "".join(f"{line}\033[K\n" for line in shown) + _CLEAR_BELOW)
    sys.stdout.flush()
