"""What a strategy comes to, by a sequential program with plain SGD: for models of any library."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from harness import simulation
from harness.simulation import Elastic, Rule
from psgd.server.record_replay import FORMAT, load

Gradient = Callable[[Any, int, int], Any]
"""Of parameters, a worker and its clock."""

OPTIONS: dict[str, dict[str, Any]] = {
    "averaging": {"period": 2},
    "easgd": {"period": 2, "easgd_order": "sync", "momentum": 0.0},
    "softsync": {"softsync": 2},
    "ssp": {"staleness": 1},
}
"""Of the strategies, where they are not by default what is simulated here."""


def without_chance(
    strategy: str, start: Any, workers: int, gradient: Gradient, *, lr: float, steps: int, samples: int
) -> Any:
    """The final parameters of sync, allreduce, averaging, easgd, or hogwild whose workers step in turn."""
    rules = [Rule("sgd", start) for _ in range(workers)]

    def rate(_: float) -> float:
        return lr

    def taken(*_: int) -> int:
        return samples

    def clocks(_: int) -> int:
        return steps

    if strategy in ("sync", "allreduce"):
        return simulation.synchronous(start, workers, rules[0], rate, clocks, taken, gradient)[0]
    if strategy == "averaging":
        return simulation.averaging(start, workers, rules, 2, rate, clocks, taken, gradient)[0]
    if strategy == "easgd":
        crew = [Elastic(w, start, taken, gradient, lr, 0.0) for w in range(workers)]
        return simulation.easgd("sync", crew, [steps] * workers, 2, 0.9 / workers)
    w = start.copy()
    for clock in range(steps):
        for worker in range(workers):
            rules[0].step(w, gradient(w, worker, clock), lr)
    return w


def by_record(path: str | Path, start: Any, workers: int, gradient: Gradient, *, lr: float, samples: int) -> Any:
    """The final parameters of a run whose order was recorded. Pushes count from 1, clocks from 0."""
    head = json.loads(Path(path).read_text().splitlines()[0])
    assert head["format"] == FORMAT
    entries = load(Path(path), head["run"])

    def pushed(w: Any, worker: int, push: int) -> Any:
        return gradient(w, worker, push - 1)

    return simulation.by_log(start, entries, workers, np.float32(lr), lambda *_: samples, pushed)[0]
