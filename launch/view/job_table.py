"""A job as a table: a head of a few lines, and a line for each worker."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from psgd.kernels.notice import counted
from psgd.launch.view.job_log import JobLog

_BAR = 20
_STALLED_S = 10.0


def table(job: JobLog, written: float | None) -> list[str]:
    """The lines.

    Args:
        job: as far as it is known.
        written: when the log was written last, by `time.time()`; None does not say how long ago.
    """
    start, end = job.start, job.end
    now: Mapping[str, Any] = max((job.progress, job.tested, job.workers), key=lambda line: _number(line.get("time")))
    if not start and not now and not end:
        return [f"{job.path}: no line of psgd train --log in it yet{_skipped(job)}"]
    names = ", ".join(str(start[name]) for name in ("dataset", "model", "strategy") if start.get(name))
    ranks = [counted(int(_number(start.get(kind))), kind.rstrip("s")) for kind in ("servers", "workers")]
    state = "ended" if end else "running"
    if end and end.get("diverged"):
        state = "ended, diverged"
    elif written is not None and not end and time.time() - written > _STALLED_S:
        state = f"no news for {_duration(time.time() - written)}"
    seconds = _number(end.get("seconds", now.get("time")))
    samples = _number(end.get("samples", now.get("samples")))
    lines = [f"{names or job.path}: {', '.join(ranks)}; {state}, {_duration(seconds)}"]
    lines += _how_far(job, samples, seconds)
    staleness = job.workers.get("staleness")
    shown = end.get("staleness") if isinstance(end.get("staleness"), dict) else None
    if shown is not None:
        lines.append(f"staleness    mean {_number(shown.get('mean')):.2f}, largest {int(_number(shown.get('max')))}")
    elif isinstance(staleness, int | float):
        largest = int(_number(job.workers.get("largest_staleness")))
        lines.append(f"staleness    mean {staleness:.2f}, largest {largest}")
    lines += ["", *_by_worker(job, seconds)]
    if said := _skipped(job):
        lines.append(said.strip())
    return lines


def _how_far(job: JobLog, samples: float, seconds: float) -> list[str]:
    """Progress, speed, loss and accuracy."""
    start, end = job.start, job.end
    lines = []
    epochs, size = _number(start.get("epochs")), _number(start.get("samples"))
    if epochs and size:
        share = min(1.0, samples / (epochs * size))
        bar = "#" * round(_BAR * share)
        left = f", {_duration(seconds / share - seconds)} left" if not end and share > 0.01 else ""
        lines.append(
            f"progress     [{bar:<{_BAR}}] {100 * share:.0f} %, epoch {int(samples // size)}/{epochs:.0f}{left}"
        )
    speed = end.get("samples_per_second", job.workers.get("samples_per_second"))
    if not isinstance(speed, int | float):
        speed = samples / seconds if seconds else 0.0
    lines.append(f"samples/s    {speed:,.0f}, {samples:,.0f} in all")
    loss = end.get("train_loss", job.progress.get("loss"))
    text = f"{loss:.4f}" if isinstance(loss, int | float) else "not finite" if end or job.progress else "-"
    lr = job.progress.get("lr")
    lines.append(f"loss         {text}" + (f", lr {lr:.4g}" if isinstance(lr, int | float) else ""))
    if job.best is not None:
        newest = job.tested.get("accuracy")
        newest = f"{newest:.4f}" if isinstance(newest, int | float) else "-"
        lines.append(f"accuracy     {newest}, best {job.best:.4f}")
    return lines


def _by_worker(job: JobLog, seconds: float) -> list[str]:
    """A line for each worker: its pushes, how far it is behind the first, and its share of time spent waiting."""
    end, time_s = job.end, _number(job.workers.get("time"))
    pushes = _numbers(end.get("workers_applied", job.workers.get("pushes")))
    waited = _numbers(end.get("waited_seconds", job.workers.get("waited_s")))
    computed = _numbers(end.get("computed_seconds"))
    if not pushes:
        return ["no line of the workers yet: there is one after the first second"] if not end else []
    rows = [f"{'worker':>6}  {'pushes':>10}  {'behind':>8}  {'pushes/s':>9}  waiting"]
    span = seconds if end else time_s
    for worker, count in enumerate(pushes):
        whole = span
        if worker < len(computed) and worker < len(waited):
            whole = waited[worker] + computed[worker]
        share = min(1.0, waited[worker] / whole) if worker < len(waited) and whole > 0 else 0.0
        speed = count / span if span > 0 else 0.0
        bar = "#" * round(_BAR * share)
        row = f"{worker:>6}  {count:>10,.0f}  {max(pushes) - count:>8,.0f}  {speed:>9,.1f}  {100 * share:>3.0f} % {bar}"
        rows.append(row.rstrip())
    return rows


def _skipped(job: JobLog) -> str:
    if not job.skipped:
        return ""
    return f" ({counted(job.skipped, 'line')} skipped: cut off, or of something else)"


def _number(value: object) -> float:
    """A number of a log; 0 where there is none."""
    good = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if good else 0.0  # type: ignore[arg-type]


def _numbers(values: object) -> list[float]:
    return [_number(value) for value in values] if isinstance(values, Sequence) and not isinstance(values, str) else []


def _duration(seconds: float) -> str:
    """A time as `4.2 s`, `1:23` or `4:05:06`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
