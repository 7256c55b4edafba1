"""Writes batch scripts for SLURM: one pure function, whose signature is the list of options."""

import re
import shlex
from collections.abc import Collection, Sequence

from psgd.kernels.errors import UsageError
from psgd.launch.slurm import options_by_template, shell
from psgd.launch.slurm.devices import settle
from psgd.launch.slurm.resources import resources
from psgd.launch.slurm.templates import KINDS, Template
from psgd.launch.slurm.training import names, number, training, trials, value
from psgd.strategies.catalog import STRATEGIES

_RULE = "-" * 104
_OTHERS = {"--log"}  # what the script gives itself
SIGNAL_DELAY_S, MAX_RESTARTS = 120, 20
_LONG_JOB = _OTHERS | {"--checkpoint-dir", "--resume", "--save-signal"}


def render(
    kind: str,
    train: Sequence[str] | None = None,
    *,
    servers: int | None = None,
    workers: int | None = None,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    cpus_per_task: int | None = None,
    mem_per_cpu_mb: int | None = None,
    time_min: int | None = None,
    job_name: str = "psgd",
    account: str | None = None,
    partition: str | None = None,
    sbatch: Sequence[str] = (),
    module: Sequence[str] = (),
    venv: str | None = None,
    container: str | None = None,
    launcher: str = "srun",
    mpi: str = "pmix",
    trial: Sequence[str] = (),
    signal_delay_s: int | None = None,
    max_restarts: int | None = None,
) -> str:
    """Returns the text of a batch script. Reads nothing and writes nothing.

    Args:
        kind: a name in `KINDS`.
        train: options of `psgd train` in place of the kind's example; what makes it this kind stays unless named.
        servers: ranks that hold the parameters; None: 1, or 0 where the strategy has none.
        workers: ranks that compute gradients; None: the kind's, or what fills `nodes`.
        nodes: None: as many as the workers need.
        gpus_per_node: one worker a GPU; None: the kind's, 0: none.
        cpus_per_task: cores and threads of a rank; None: the kind's.
        mem_per_cpu_mb: memory a core, in MB; None: the cluster's default.
        time_min: the time limit in minutes; None: the kind's.
        job_name: the job's name, and the first part of its log's.
        account: who pays; None leaves a line to fill in.
        partition: where to run; None leaves a line to fill in.
        sbatch: further options of sbatch, as `--qos=long`.
        module: modules to load.
        venv: folder of the virtual environment with psgd; None: `.venv` in the folder of submission.
        container: image to run the ranks in with Apptainer, instead of a virtual environment.
        launcher: `srun`, or `mpirun` inside the allocation, which then outlives a lost node.
        mpi: srun's plugin: `pmix` for Open MPI, `pmi2` for MPICH.
        trial: options of one job of kind `array`, a text for each job.
        signal_delay_s: kind `long_job`: seconds before the time limit at which it saves and stops; None: 120.
        max_restarts: kind `long_job`: times that it goes back into the queue; None: 20.

    Raises:
        UsageError: an unknown name, a number out of range, or numbers that do not go together.
    """
    chosen = KINDS[_known("kind", kind, KINDS)]
    _known("--launcher", launcher, ("srun", "mpirun"))
    _known("--mpi", mpi, ("pmix", "pmi2", "none"))
    options_by_template.check(kind, trial, signal_delay_s, max_restarts)
    if venv is not None and container is not None:
        raise UsageError("--venv, --container: expected one of the two")
    words = training(kind, train)
    tried = trials(kind, train, trial)
    named = names(words).union(*(names(text.split()) for text in tried))
    if twice := named.intersection(_LONG_JOB if kind == "long_job" else _OTHERS):
        raise UsageError(f"{min(twice)}: the script gives it, omit it")
    gpus = settle(chosen, words, gpus_per_node)
    options_by_template.check_trials(tried, gpus)
    strategy = value(words, "--strategy") or "sync"
    size = resources(
        chosen,
        servers=number(words, "--servers", servers),
        workers=number(words, "--workers", workers),
        nodes=nodes,
        gpus_per_node=gpus,
        serverless=strategy in STRATEGIES and not STRATEGIES[strategy].servers,
    )
    if size.servers > 1 and "--servers" not in names(words):
        words += ["--servers", str(size.servers)]
    time_min = _positive("--time-min", time_min) or chosen.time_min
    delay = SIGNAL_DELAY_S if signal_delay_s is None else signal_delay_s
    restarts = MAX_RESTARTS if max_restarts is None else max_restarts
    if kind == "long_job":
        options_by_template.check_long_job(delay, restarts, time_min)

    asked = {
        "account": account,
        "partition": partition,
        "job-name": job_name,
        "nodes": size.nodes,
        "ntasks": size.tasks,
        "ntasks-per-node": size.tasks_per_node if size.nodes > 1 else None,
        "gpus-per-node": gpus or None,
        "cpus-per-task": _positive("--cpus-per-task", cpus_per_task) or chosen.cpus_per_task,
        "mem-per-cpu": _positive("--mem-per-cpu-mb", mem_per_cpu_mb),
        "time": time_min,
        "array": f"0-{len(tried) - 1}" if kind == "array" else None,
        "signal": f"B:USR2@{delay}" if kind == "long_job" else None,
        "output": "%x-%A-%a.out" if kind == "array" else "%x-%j.out",
        "open-mode": "append",
    }
    lines = ["#!/bin/bash", *(f"# {line}" for line in _what(chosen, words, gpus).splitlines())]
    lines += [
        f"#   sbatch slurm/{kind}.sbatch",
        f"# `psgd slurm render {kind}` wrote it; --help lists what it can set.",
    ]
    lines += ["", f"# ---- edit here {_RULE[16:]}"]
    for name, asking in asked.items():
        if asking is not None:
            lines.append(_directive(f"--{name}={asking}") + (" # minutes" if name == "time" else ""))
        elif name in ("account", "partition"):
            lines.append(f"##SBATCH --{name}={name.upper()}")
        elif name == "mem-per-cpu":
            lines.append(f"##SBATCH --{name}=2000 # MB a core; `sacct -j JOB -o MaxRSS` shows what a job has used")
    lines += ["#SBATCH --requeue"] if kind == "long_job" else []
    lines += ["#SBATCH --no-kill"] if launcher == "mpirun" else []
    lines += [_directive(option) for option in sbatch]
    lines += [
        f"module load {shlex.join(module)}"
        if module
        else "# module load openmpi # the MPI of mpi4py, unless it came with pip"
    ]
    lines += _environment(venv, container, gpus > 0)
    if launcher == "srun":
        lines.append(f"MPI={mpi} # pmix for Open MPI, pmi2 for MPICH; `srun --mpi=list` shows what this cluster has")
    lines += _only(kind, tried, restarts)
    lines += ["# --dataset fashion-mnist needs its IDX files: export PSGD_DATA=FOLDER"]
    lines += [f"OPTIONS=({shlex.join(words)})", f"# {_RULE[2:]}"]
    start = shell.MPIRUN if launcher == "mpirun" else shell.SRUN_GPUS if gpus else shell.SRUN
    run = {"array": shell.RUN_TRIAL, "long_job": shell.RUN_LONG}.get(kind, shell.RUN)
    step = shell.NEW_STEP if kind == "long_job" and launcher == "srun" else ""
    return "\n".join(lines) + "\n" + shell.PRELUDE + start + step + run


def _only(kind: str, tried: Sequence[str], restarts: int) -> list[str]:
    """Lines to edit that only one kind has."""
    if kind == "decentralized_slow_network":
        return ["# export OMPI_MCA_btl_tcp_if_include=eth0 FI_TCP_IFACE=eth0 # where nodes have several networks"]
    if kind == "array":
        return ["TRIALS=( # as many as --array counts", *(f"    {shlex.quote(text)}" for text in tried), ")"]
    if kind == "long_job":
        folder = "CHECKPOINTS=$SLURM_SUBMIT_DIR/checkpoints-$SLURM_JOB_ID # a folder that all nodes see"
        return [folder, f"MAX_RESTARTS={restarts}"]
    return []


def _what(chosen: Template, words: Sequence[str], gpus: int) -> str:
    """The comment on top: the kind's, unless it is no longer true of the options."""
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
    return [f"VENV={where} # has psgd", f"RUN=() # in a container: VENV= and RUN=({image}psgd.sif)"]


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
