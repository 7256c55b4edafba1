"""What other programs call an option: an unknown one is answered with ours, by meaning or else by spelling."""

import difflib
from collections.abc import Iterable

import click

_OTHERS = {
    "lr": "learning-rate base-lr init-lr initial-lr step-size eta alpha",
    "batch-size": "batch bs b minibatch mini-batch train-batch-size per-device-train-batch-size local-batch-size",
    "epochs": "num-epochs n-epochs max-epochs num-train-epochs e",
    "workers": "num-workers nprocs nproc np n nproc-per-node num-processes num-procs processes ranks num-ranks ntasks "
    "world-size",
    "servers": "num-servers ps num-ps parameter-servers",
    "ranks": "num-ranks nprocs nproc np n nproc-per-node num-processes num-procs processes ntasks world-size workers",
    "optimizer": "optim opt rule",
    "weight-decay": "wd l2 decay",
    "model": "arch architecture net network a",
    "hidden": "hidden-size hidden-units hidden-dim units",
    "dataset": "data data-dir data-path dataset-path dataset-name input",
    "seed": "random-seed manual-seed rng-seed",
    "device": "gpu gpus cuda use-cuda use-gpu accelerator",
    "checkpoint-dir": "checkpoint checkpoints ckpt ckpt-dir ckpt-path checkpoint-path save-dir",
    "checkpoint-every": "checkpoint-interval checkpoint-freq checkpoint-steps save-every save-freq save-interval "
    "save-steps",
    "checkpoint-keep": "keep max-to-keep keep-last save-total-limit",
    "save": "output out o output-dir save-model save-path model-out export",
    "output": "out save file",
    "resume": "resume-from resume-from-checkpoint restore load continue restart",
    "clip-norm": "clip clip-grad clip-grad-norm grad-clip max-grad-norm gradient-clip-val gradient-clipping",
    "accumulate": "grad-accum grad-accumulation gradient-accumulation gradient-accumulation-steps accumulation-steps "
    "accumulate-grad-batches",
    "schedule": "scheduler lr-schedule lr-scheduler lr-scheduler-type lr-policy",
    "warmup-epochs": "warmup warmup-steps lr-warmup-epochs num-warmup-steps",
    "step-factor": "gamma lr-gamma lr-decay",
    "step-epochs": "lr-step-size decay-epochs",
    "scale-lr": "linear-scaling scale-learning-rate",
    "eval-every": "eval-interval eval-freq eval-steps val-interval val-every test-every test-interval",
    "target-accuracy": "target target-acc stop-accuracy",
    "period": "local-steps tau sync-period sync-every",
    "compress": "compression quantize quantization sparsify",
    "density": "sparsity ratio compression-ratio",
    "log": "logfile log-file log-path",
    "log-dir": "logdir logs logs-dir log-folder",
    "save-signal": "signal",
    "mpiexec-args": "hostfile host hosts mpirun-args mpi-args launcher-args",
    "sizes": "size bytes message-size",
    "repeats": "iters iterations reps repetitions runs",
    "partition": "p queue",
    "time-min": "t time walltime time-limit",
    "nodes": "N num-nodes nnodes",
}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The option that somebody means by a name, or None.

    Args:
        name: as it was given, without leading dashes.
        known: the options there are, likewise.
    """
    options = list(known)
    plain = name.replace("_", "-")
    if plain in options:
        return plain
    for option in options:
        if plain in _OTHERS.get(option, "").split():
            return option
    by_spelling = difflib.get_close_matches(plain.lower(), options, n=1)
    return by_spelling[0] if by_spelling else None


def of(error: click.NoSuchOption) -> str:
    """The message for an unknown option: what was meant, or where all are listed."""
    context = error.ctx
    if context is None:
        return error.format_message()
    words = [word for each in context.command.params for word in (*each.opts, *each.secondary_opts)]
    near = nearest(error.option_name.lstrip("-"), [word[2:] for word in words if word.startswith("--")])
    hint = f"see {context.command_path} --help" if near is None else f"did you mean --{near}?"
    return f"no option {error.option_name!r}; {hint}"


def with_help(error: click.ClickException) -> str:
    """The message for wrong words of a command: of what is left over, also where the right ones are listed."""
    said = error.format_message()
    context = getattr(error, "ctx", None)
    if context is None or not said.startswith("Got unexpected extra argument"):
        return said
    return f"{said}: see {context.command_path} --help"
