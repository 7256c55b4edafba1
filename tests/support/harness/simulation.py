"""Sequential simulations of every strategy: what its ranks must come to, written as one program in NumPy.

Nothing here is of the code that it checks: the update rules are written again. Where the arithmetic of a strategy is
promised (sums in worker order, one division) it is repeated in the vector's dtype, so that results are equal bit for
bit. Strategies whose order is chance take it from outside, as recorded or enforced. `compressed_simulation` has the
forms that compress or pass on updates.

Workers are numbered; `gradient(w, worker, clock)` and `samples(worker, clock)` are what a worker does at its step of
that number, `steps(worker)` how many it takes, `rate(samples)` the schedule.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.fused import multiply_add

Vector = NDArray[Any]
Gradient = Callable[[Vector, int, int], Vector]
Samples = Callable[[int, int], int]


def curved(w: Vector, worker: int, clock: int, waves: float = 1.0) -> Vector:
    """A gradient that depends on parameters, worker, clock and element: a wrong order or copy shows."""
    ramp = np.arange(1, w.size + 1, dtype=w.dtype) / w.dtype.type(w.size)
    result: Vector = (w * ramp + np.sin(waves * ramp * (worker + 1) + clock)).astype(w.dtype)
    return result


class Rule:
    """An update rule and one worker's state of it, in the vector's dtype.

    Args:
        name: sgd, momentum, nesterov or adam.
        like: a vector of that size and dtype.
        decay, factor: weight decay, momentum.

    Attributes:
        state: arrays, to be replaced by who averages them.
        taken: steps.
    """

    def __init__(self, name: str, like: Vector, decay: float = 0.0, factor: float = 0.9) -> None:
        self.name, self.decay, self.factor = name, decay, factor
        self.state = [np.zeros_like(like) for _ in range({"sgd": 0, "adam": 2}.get(name, 1))]
        self.taken = 0

    def step(self, w: Vector, grad: Vector, lr: float, scale: float = 1.0, clip: float = 0.0) -> None:
        """Changes `w` along `scale * grad`, whose norm is no more than `clip`."""
        kind = w.dtype.type
        self.taken += 1
        scale = clipped(scale, grad, clip)
        g = kind(scale) * grad
        # But for Adam it is rounded as by PyTorch's SGD.
        g = g + kind(self.decay) * w if self.name == "adam" else multiply_add(self.decay, w, g)
        if self.name == "sgd":
            w[:] = multiply_add(-lr, g, w)
        elif self.name == "adam":  # Kingma and Ba
            m, s = self.state
            m[:] = kind(0.9) * m + kind(1 - 0.9) * g
            s[:] = kind(0.999) * s + kind(1 - 0.999) * g * g
            root = kind(1 / np.sqrt(1 - power(0.999, self.taken)))
            w -= kind(lr / (1 - power(0.9, self.taken))) * m / (np.sqrt(s) * root + kind(1e-8))
        else:
            (v,) = self.state
            v[:] = kind(self.factor) * v + g
            w[:] = multiply_add(-lr, multiply_add(self.factor, v, g) if self.name == "nesterov" else v, w)


def power(x: float, n: int) -> float:
    """By squaring, as compiled code takes whole powers: the last bit may differ from that of `x**n`."""
    result = 1.0
    while n:
        result, x, n = result * x if n & 1 else result, x * x, n >> 1
    return result


def squares(grad: Vector) -> float:
    """The sum of the squares, rounded once, as psgd has it: no order and no cut changes it."""
    return math.fsum((grad.astype(np.float64).reshape(-1) ** 2).tolist())


def clipped(scale: float, grad: Vector, clip: float) -> float:
    """The scale, smaller where `scale * grad` is longer than `clip`."""
    if not clip:
        return scale
    norm = scale * math.sqrt(squares(grad))
    return scale * clip / norm if norm > clip else scale


def synchronous(
    start: Vector,
    workers: int,
    rule: Rule,
    rate: Callable[[float], float],
    steps: Callable[[int], int],
    samples: Samples,
    gradient: Gradient = curved,
    every: int = 1,
    clip: float = 0.0,
    factor: float = 1.0,
    served: bool = False,
) -> tuple[Vector, int, int]:
    """sync and allreduce: samples * gradient summed in worker order, then one step on the mean.

    Args:
        start, workers, rule, rate, steps, samples, gradient: see the module.
        every: steps that a worker sums up first.
        clip: of the mean gradient.
        factor: what the mean is multiplied by.
        served: by a server, which applies a single contribution as it is.

    Returns:
        Parameters, optimizer steps, samples.
    """
    w, kind = start.copy(), start.dtype.type
    version = applied = 0
    for first in range(0, max(map(steps, range(workers))), every):
        sums, total, alone = [], 0, []
        for worker in range(workers):
            own = np.zeros_like(w)
            for clock in range(first, min(first + every, steps(worker))):
                if count := samples(worker, clock):
                    alone.append(gradient(w, worker, clock))
                    own = own + kind(count) * alone[-1]
                    total += count
            sums.append(own)
        if not total:
            continue
        summed = sums[0]
        for own in sums[1:]:
            summed = summed + own
        if served and len(alone) == 1:
            rule.step(w, alone[0], rate(applied), factor, clip)
        else:
            rule.step(w, summed, rate(applied), factor / total, clip)
        applied, version = applied + total, version + 1
    return w, version, applied


def by_log(
    start: Vector,
    entries: Iterable[Any],
    workers: int,
    lr: float,
    samples: Samples,
    gradient: Gradient,
    scale: Callable[[int], float] | None = None,
) -> tuple[Vector, list[int]]:
    """A server's strategy (async, softsync, ssp, sync): its log's entries, applied one after the other by plain SGD.

    Args:
        start, workers, samples, gradient: see the module; clocks count from 1, as a log counts pushes.
        entries: of `psgd.server.log`: `group` of (worker, push, weight), `opens`, `release`.
        lr: the rate.
        scale: of a gradient by its staleness.

    Returns:
        Parameters, and the staleness of each contribution.
    """
    w = start.copy()
    copies, pulled = [w.copy() for _ in range(workers)], [0] * workers
    version, total, opened = 0, 0, False
    group: list[tuple[int, float, Vector]] = []
    stale: list[int] = []
    for entry in entries:
        opened |= entry.stays_open and bool(group or any(samples(m.worker, m.push) for m in entry.group))
        for worker, push, weight in entry.group:
            if count := samples(worker, push):
                stale.append(version - pulled[worker])
                scaled = weight * scale(stale[-1]) if scale else weight
                group.append((count, scaled, gradient(copies[worker], worker, push)))
                total += count
        if group and not entry.stays_open:
            if len(group) == 1 and not opened:  # else the same mean with other roundings
                mean = group[0][1] * group[0][2]
            else:
                summed = (group[0][0] * group[0][1]) * group[0][2]
                for count, weight, g in group[1:]:
                    summed = summed + (count * weight) * g
                mean = (1.0 / total) * summed
            w = multiply_add(-lr, mean + 0.0 * w, w)
            version, total, group, opened = version + 1, 0, [], False
        for worker in entry.release:
            copies[worker], pulled[worker] = w.copy(), version
    assert not group
    return w, stale


def mean(arrays: Sequence[Vector], counts: Sequence[int]) -> Vector:
    """Weighed by samples: those counts over their common divisor, in worker order, and divided once."""
    kind, common = arrays[0].dtype.type, math.gcd(*counts)
    summed = np.zeros_like(arrays[0])
    for array, count in zip(arrays, counts, strict=True):
        if count:
            summed = summed + kind(count // common) * array
    result: Vector = summed / kind(sum(counts) // common)
    return result


def averaging(
    start: Vector,
    workers: int,
    rules: Sequence[Rule],
    period: int,
    rate: Callable[[float], float],
    steps: Callable[[int], int],
    samples: Samples,
    gradient: Gradient = curved,
    average_momentum: bool = True,
    local_from: float = 0,
    outer_lr: float = 1.0,
    outer_momentum: float = 0.0,
    clip: float = 0.0,
    factor: float = 1.0,
) -> tuple[Vector, int, int]:
    """averaging: each worker by itself for a period, then all take the mean, with an outer step where there is one.

    Returns:
        Parameters, steps of the busiest worker, samples.
    """
    kind = start.dtype.type
    own = [start.copy() for _ in range(workers)]
    at, known, base, active = [0] * workers, 0, 0, workers
    old, u = start.copy(), np.zeros_like(start)
    while True:
        local = known >= local_from
        counts, pushes = [0] * workers, [0] * workers
        ended = 0
        for k in range(workers):
            for _ in range(period if local else 1):
                if at[k] == steps(k):
                    break
                clock, at[k] = at[k], at[k] + 1
                if count := samples(k, clock):
                    lr = rate(known + active * counts[k])
                    rules[k].step(own[k], gradient(own[k], k, clock), lr, factor, clip)
                    counts[k] += count
                    pushes[k] += 1
            else:
                continue
            ended += 1  # came to its end before the period was full
        active = workers - ended
        if sum(counts):
            average = mean(own, counts)
            if local and (outer_lr, outer_momentum) != (1.0, 0.0):
                delta = old - average
                if outer_momentum:
                    u = kind(outer_momentum) * u + delta
                    delta = delta + kind(outer_momentum) * u
                average = old - kind(outer_lr) * delta
            old = average
            own = [average.copy() for _ in range(workers)]
            base += max(pushes)
            if average_momentum:
                states = [mean(each, counts) for each in zip(*(rule.state for rule in rules), strict=True)]
                for rule in rules:
                    rule.state, rule.taken = [state.copy() for state in states], base
            known += sum(counts)
        if not active:
            return own[0], base, known


def two_nodes(start: Vector, steps: Sequence[int], samples: Samples, period: int, lr: float) -> Vector:
    """hogwild over two nodes of one worker each, which average; a worker that is done goes on without samples."""
    w = [start.copy() for _ in steps]
    at, drawn, before = [0] * len(steps), [0] * len(steps), [0] * len(steps)
    while True:
        for k, total in enumerate(steps):
            for clock in range(at[k], min(total, at[k] + period)):
                w[k] -= lr * curved(w[k], k, clock)
                drawn[k] += samples(k, clock)
            stopped, at[k] = at[k] + period > total, min(total, at[k] + period)
            at[k] = total + 1 if stopped else at[k]  # a worker whose last step ended a period does not know it yet
        new = [d - b for d, b in zip(drawn, before, strict=True)]
        before = list(drawn)
        weights = [x / sum(new) for x in new] if sum(new) else [1 / len(steps)] * len(steps)
        middle: Vector = weights[0] * w[0] + weights[1] * w[1]
        if all(a > total for a, total in zip(at, steps, strict=True)):
            return middle
        w = [each + (middle - each) for each in w]


class Elastic:
    """easgd: one worker with parameters and a velocity of its own (Nesterov's, in PyTorch's form)."""

    def __init__(
        self,
        number: int,
        start: Vector,
        samples: Samples,
        gradient: Gradient,
        lr: float,
        factor: float,
        decay: float = 0.0,
    ) -> None:
        self.number, self.samples, self.gradient = number, samples, gradient
        self.lr, self.factor, self.decay = lr, factor, decay
        self.x, self.v, self.t = start.copy(), np.zeros_like(start), 0

    def step(self, a: float = 0.0, centre: Vector | None = None, mistake: str = "") -> Any:
        """A local step, with the elastic pull where there is a centre; returns what the centre is to be given.

        Args:
            a: of the pull.
            centre: as it is before.
            mistake: "momentum", the rule sees the pull too; "new params", the centre is given it after the step.
        """
        old, worker = self.x.copy(), self.number
        pull = 0.0 if centre is None else a * (old - centre)
        if self.samples(worker, self.t):
            g = multiply_add(self.decay, old, self.gradient(old, worker, self.t))
            if mistake == "momentum" and centre is not None:
                g = g + pull / self.lr
            self.v = self.factor * self.v + g
            self.x = multiply_add(-self.lr, multiply_add(self.factor, self.v, g), old)
        if mistake != "momentum" or not self.samples(worker, self.t):
            self.x = self.x - pull
        self.t += 1
        return a * (self.x - centre) if mistake == "new params" and centre is not None else pull


def easgd(
    order: str, crew: Sequence[Elastic], steps: Sequence[int], period: int, a: float, mistake: str = ""
) -> Vector:
    """The orders sync and round-robin: runs a crew, not yet used, to its ends; returns the centre."""
    centre = crew[0].x.copy()
    for _ in range(max(steps) // period + 1):
        before = centre.copy()
        given = []
        for worker in crew:
            left = steps[worker.number] - worker.t
            for _step in range(min(period, left)):
                if (worker.t + 1) % period:
                    worker.step()
                elif order == "sync":
                    given.append(worker.step(a, before, mistake))
                else:
                    centre = centre + worker.step(a, centre, mistake)
        centre = centre + sum(given)
    return centre


def easgd_by_log(
    crew: Sequence[Elastic], exchanges: Iterable[int], steps: Sequence[int], period: int, a: float
) -> Vector:
    """The order async: exchanges by worker in the order in which they were made; returns the centre."""
    centre = crew[0].x.copy()
    for worker in exchanges:
        for _ in range(period - 1):
            crew[worker].step()
        centre = centre + crew[worker].step(a, centre)
    for each in crew:
        while each.t < steps[each.number]:
            each.step()
    return centre


def hogwild(
    start: Vector, log: Sequence[int], rules: Sequence[Rule], rate: Callable[[float], float], samples: Sequence[int]
) -> tuple[Vector, list[int]]:
    """Workers in a known order, each with the gradient of what it read after its last step.

    Args:
        start, rules, rate: see the module.
        log: whose each step is.
        samples: of a step, by worker.

    Returns:
        Parameters, and the staleness of each step.
    """
    w, drawn = start.copy(), 0
    reads = [w.copy() for _ in rules]
    last, stale = [0] * len(rules), []
    for clock, worker in enumerate(log):
        rules[worker].step(w, curved(reads[worker], worker, clock), rate(drawn))
        drawn += samples[worker]
        stale.append(clock - last[worker])
        last[worker] = clock + 1
        reads[worker] = w.copy()
    return w, stale
