"""`psgd doctor`: what will work here, and how to fix the rest. One check is one small function.

Begin with `check.py`.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from psgd.launch import ranks
from psgd.launch.doctor.check import Check, lines
from psgd.runtime.launcher_env import AloneError

if TYPE_CHECKING:
    from mpi4py import MPI


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="What to train on; auto is cuda if CuPy is installed. With cuda, a missing GPU is an error.",
)
def doctor(as_json: bool, device: str) -> int:
    """Show what works here, and how to fix the rest. The exit code is 1 if anything is wrong.

    Under mpirun or srun, the ranks also check whether they see each other, whether they share cores, how far apart
    their clocks are, and which links are slow.
    """
    wanted = {"auto": None, "cpu": False, "cuda": True}[device]
    if ranks.place() is None:
        found = examine(wanted, starts=True)
        return _tell(found, found, as_json)
    return _be_rank(wanted, as_json)


def examine(wanted: bool | None = None, starts: bool = False) -> list[Check]:
    """Looks at this host. Starts no MPI in this process; others start it to ask it.

    Args:
        wanted: whether to train on GPUs; None where CuPy is installed.
        starts: try whether mpiexec can start ranks, which those of a job know already.
    """
    from psgd.launch.doctor import gpus, machine, mpi, sharing, slurm

    of_mpi = mpi.checks(starts)
    vendor = next((v for v in ("Open MPI", "MPICH", "MVAPICH", "Intel MPI") if of_mpi[0].value.startswith(v)), None)
    return [*machine.checks(), *of_mpi, *sharing.checks(vendor), *gpus.checks(wanted), *slurm.checks(vendor)]


def _tell(new: Sequence[Check], found: Sequence[Check], as_json: bool) -> int:
    """Prints what is new, or all as JSON; returns the exit code."""
    problems, warnings = (
        [f"{check.name}: {check.value}; {check.fix}" for check in found if check.state == state]
        for state in ("wrong", "warning")
    )
    if as_json:
        checks = {check.name.replace(" ", "_"): asdict(check) for check in found}
        for each in checks.values():
            del each["name"]
        click.echo(json.dumps({"checks": checks, "problems": problems, "warnings": warnings}))
    else:
        for line in lines(new):
            click.echo(line)
    return 1 if problems else 0


def _be_rank(wanted: bool | None, as_json: bool) -> int:
    """One rank's part. The first of each host looks at it; rank 0 prints, before MPI starts what is known by then."""
    speaks = ranks.speaks()
    here = examine(wanted) if speaks else []
    if speaks and not as_json:
        _tell(here, here, as_json)
    from psgd.launch import startup

    comm: MPI.Intracomm | None = None
    try:
        comm = startup.start()
        together: list[Check] = []
    except ImportError:  # reported already
        together = []
    except AloneError as error:
        together = [Check("ranks", error.cause, "wrong", error.fix)]
    if comm is not None:
        from psgd.launch.doctor import job
        from psgd.runtime.fail_together import guard

        with guard(comm):
            if startup.leads(comm) and not here:
                here = examine(wanted)
            together = job.checks(comm, here)
            speaks = comm.rank == 0
    if not speaks:
        return 0
    return _tell(together, [*here, *together], as_json)
