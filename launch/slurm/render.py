"""Writes batch scripts for SLURM: one pure function of `BatchOptions`."""

import re
import shlex
from collections.abc import Collection, Sequence
from typing import Any

from psgd.kernels.errors import UsageError
from psgd.launch.slurm import options_by_template, shell
from psgd.launch.slurm.batch_options import BatchOptions
from psgd.launch.slurm.devices import settle
from psgd.launch.slurm.resources import Resources, resources
from psgd.launch.slurm.templates import KINDS, Template
from psgd.launch.slurm.training import (
    copies,
    names,
    number,
    outlives,
    ranks_of_a_worker,
    standing_by,
    training,
    trials,
    value,
)
from psgd.strategies.catalog import STRATEGIES

_RULE = "-" * 104
_OTHERS = {"--log"}  # what the script gives itself
SIGNAL_DELAY_S, MAX_RESTARTS = 120, 20
_LONG_JOB = _OTHERS | {"--checkpoint-dir", "--resume", "--save-signal"}


def render(kind: str, train: Sequence[str] | None = None, file: Sequence[str] = (), **given: Any) -> str:
    """Returns the text of a batch script. Reads nothing and writes nothing.

    Args:
        kind: a name in `KINDS`.
        train: options of `psgd train` in place of the kind's example; what makes it this kind stays unless named.
        file: what the file of `--config` says, as words of a command line; it counts, the script does not repeat it.
        **given: fields of `BatchOptions`.

    Raises:
        UsageError: an unknown name, a number out of range, or numbers that do not go together.
    """
    batch = BatchOptions(**given)
    chosen = KINDS[_known("kind", kind, KINDS)]
    _known("--launcher", batch.launcher, ("srun", "mpirun"))
    _known("--mpi", batch.mpi, ("pmix", "pmi2", "none"))
    options_by_template.check(kind, batch.trial, batch.signal_delay_s, batch.max_restarts)
    if batch.venv is not None and batch.container is not None:
        raise UsageError("--venv, --container: expected one of the two")
    known = [*file, *training(kind, train, file)]
    tried = trials(kind, [*file, *(train or ())], batch.trial)
    named = names(known).union(*(names(text.split()) for text in tried))
    if twice := named.intersection(_LONG_JOB if kind == "long_job" else _OTHERS):
        raise UsageError(f"{min(twice)}: the script sets it; omit it")
    gpus = settle(chosen, known, batch.gpus_per_node)
    options_by_template.check_trials(tried, gpus)
    survives = _survives([known, *([*known, *text.split()] for text in tried)], batch.launcher)
    size = _size(chosen, known, batch, gpus)
    if size.servers > 1 and "--servers" not in names(known):
        known += ["--servers", str(size.servers)]

    lines = [
        "#!/bin/bash",
        *(f"# {line}" for line in _what(chosen, known, gpus).splitlines()),
        f"#   sbatch slurm/{kind}.sbatch",
        f"# Written by `psgd slurm render {kind}`; its --help lists what can be set.",
        "",
        f"# ---- edit here {_RULE[16:]}",
        *_directives(kind, batch, size, gpus, len(tried)),
        f"module load {shlex.join(batch.module)}"
        if batch.module
        else "# module load openmpi # the MPI that mpi4py uses, unless pip installed it",
        *_environment(batch.venv, batch.container, gpus > 0),
    ]
    if batch.launcher == "srun":
        lines.append(
            f"MPI={batch.mpi} # pmix for Open MPI, pmi2 for MPICH; `srun --mpi=list` lists this cluster's plugins"
        )
    lines += [
        *_only(kind, tried, MAX_RESTARTS if batch.max_restarts is None else batch.max_restarts),
        "# --dataset fashion-mnist needs its IDX files: export PSGD_DATA=FOLDER",
        f"OPTIONS=({shlex.join(known[len(file) :])})",
        f"# {_RULE[2:]}",
    ]
    return "\n".join(lines) + "\n" + _body(kind, batch.launcher, gpus > 0, survives)


def _survives(runs: Sequence[Sequence[str]], launcher: str) -> bool:
    """Whether one of these runs has to go on when a rank dies.

    Raises:
        UsageError: it has, and its launcher would end it.
    """
    option = next(filter(None, map(outlives, runs)), None)
    if option is not None and launcher == "srun":
        raise UsageError(f"{option}: expected --launcher mpirun, as srun ends the job when a rank dies")
    return option is not None


def _size(chosen: Template, words: Sequence[str], batch: BatchOptions, gpus: int) -> Resources:
    strategy = value(words, "--strategy") or "sync"
    idle, first = standing_by(words)
    if first is not None and batch.workers is not None:
        raise UsageError(f"--workers {batch.workers}: --grow says how many workers there are; omit it")
    workers = number(words, "--workers", copies(words) if batch.workers is None else batch.workers)
    return resources(
        chosen,
        servers=number(words, "--servers", batch.servers),
        workers=workers if first is None else first,
        nodes=batch.nodes,
        gpus_per_node=gpus,
        serverless=strategy in STRATEGIES and not STRATEGIES[strategy].servers,
        idle=idle,
        parts=ranks_of_a_worker(words),
    )


def _directives(kind: str, batch: BatchOptions, size: Resources, gpus: int, tried: int) -> list[str]:
    """The lines for sbatch; what only the user knows is there as a comment."""
    minutes = _positive("--time-min", batch.time_min) or KINDS[kind].time_min
    delay = SIGNAL_DELAY_S if batch.signal_delay_s is None else batch.signal_delay_s
    if kind == "long_job":
        options_by_template.check_long_job(delay, batch.max_restarts or 0, minutes)
    asked = {
        "account": batch.account,
        "partition": batch.partition,
        "job-name": batch.job_name,
        "nodes": size.nodes,
        "ntasks": size.tasks,
        "ntasks-per-node": size.tasks_per_node if size.nodes > 1 else None,
        "gpus-per-node": gpus or None,
        "cpus-per-task": _positive("--cpus-per-task", batch.cpus_per_task) or KINDS[kind].cpus_per_task,
        "mem-per-cpu": _positive("--mem-per-cpu-mb", batch.mem_per_cpu_mb),
        "time": minutes,
        "array": f"0-{tried - 1}" if kind == "array" else None,
        "signal": f"B:USR2@{delay}" if kind == "long_job" else None,
        "output": "%x-%A-%a.out" if kind == "array" else "%x-%j.out",
        "open-mode": "append",
    }
    lines = []
    for name, asking in asked.items():
        if asking is not None:
            lines.append(_directive(f"--{name}={asking}") + (" # minutes" if name == "time" else ""))
        elif name in ("account", "partition"):
            lines.append(f"##SBATCH --{name}={name.upper()}")
        elif name == "mem-per-cpu":
            lines.append(f"##SBATCH --{name}=2000 # MB per core; `sacct -j JOB -o MaxRSS` shows how much a job used")
    further = ["--requeue"] * (kind == "long_job") + ["--no-kill"] * (batch.launcher == "mpirun") + [*batch.sbatch]
    return lines + [_directive(option) for option in further]


def _only(kind: str, tried: Sequence[str], restarts: int) -> list[str]:
    """The lines to edit that only this kind has."""
    if kind == "decentralized_slow_network":
        return ["# export OMPI_MCA_btl_tcp_if_include=eth0 FI_TCP_IFACE=eth0 # if the nodes have several networks"]
    if kind == "array":
        return ["TRIALS=( # one for each index of --array", *(f"    {shlex.quote(text)}" for text in tried), ")"]
    if kind == "long_job":
        folder = "CHECKPOINTS=$SLURM_SUBMIT_DIR/checkpoints-$SLURM_JOB_ID # a folder that all nodes share"
        return [folder, f"MAX_RESTARTS={restarts}"]
    return []


def _what(chosen: Template, words: Sequence[str], gpus: int) -> str:
    """The comment at the top: the kind's, unless the options make it untrue."""
    as_made = all(value(words, flag) == text for flag, text in chosen.always)
    if chosen.any_strategy or (as_made and bool(gpus) == bool(chosen.gpus_per_node)):
        return chosen.what
    return f"Trains with --strategy {value(words, '--strategy')} on {'GPUs' if gpus else 'CPUs'}."


def _environment(venv: str | None, container: str | None, gpus: bool) -> list[str]:
    """Lines that say where psgd is: in a virtual environment or in an image."""
    image = f"apptainer exec {'--nv ' if gpus else ''}"
    if container is not None:
        return ["VENV=", f"RUN=({image}{shlex.quote(container)})"]
    where = "$SLURM_SUBMIT_DIR/.venv" if venv is None else shlex.quote(venv)
    return [f"VENV={where} # where psgd is installed", f"RUN=() # in a container: VENV= and RUN=({image}psgd.sif)"]


def _body(kind: str, launcher: str, gpus: bool, survives: bool) -> str:
    """The shell that follows the block."""
    start = shell.MPIRUN if launcher == "mpirun" else shell.SRUN_GPUS if gpus else shell.SRUN
    if survives:
        start = shell.MPIRUN_ULFM
    if kind == "long_job":
        step, done = (shell.NEW_STEP, "") if launcher == "srun" else ("", shell.DONE_LONG)
        return shell.PRELUDE + start + shell.PATIENTLY + step + shell.RUN_LONG + done + shell.END_LONG
    return shell.PRELUDE + start + (shell.RUN_TRIAL if kind == "array" else shell.RUN)


def _known(what: str, name: str, names: Collection[str]) -> str:
    if name not in names:
        raise UsageError(f"{what} {name!r}: expected one of {', '.join(names)}")
    return name


def _positive(flag: str, count: int | None) -> int | None:
    if count is not None and count < 1:
        raise UsageError(f"{flag} {count}: expected at least 1")
    return count


def _directive(option: str) -> str:
    if not re.fullmatch(r"-\S+", option):
        raise UsageError(f"sbatch: expected one option without spaces, like --qos=long, got {option!r}")
    return f"#SBATCH {option}"
