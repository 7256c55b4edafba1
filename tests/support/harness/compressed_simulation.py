"""Sequential simulations of strategies that compress or pass on updates: `harness.simulation` has the others.

Codecs are psgd's; what is simulated is what is put into them, in which order, and what becomes of what they say.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.fused import multiply_add
from harness.simulation import Gradient, Samples
from psgd.collectives.mpi.split import split
from psgd.kernels import codecs

Vector = NDArray[Any]


class Link:
    """One end of a link: a codec and what it says."""

    def __init__(self, name: str, size: int, dtype: Any, density: float, factor: float) -> None:
        options = {"momentum": factor} if name == "topk" else {}
        self.codec: Any = codecs.create(name, size, dtype, density=density, **options)
        self.payload = np.empty(self.codec.max_nbytes(), np.uint8)

    def say(self, update: Vector, out: Vector) -> None:
        self.codec.decode_add(self.payload[: self.codec.encode(update, self.payload)], out)


def allreduce(
    start: Vector,
    workers: int,
    name: str,
    density: float,
    factor: float,
    rate: Callable[[float], float],
    steps: Callable[[int], int],
    samples: Samples,
    gradient: Gradient,
    warmup: float = 0,
    sync: int = 0,
) -> tuple[Vector, int]:
    """Every worker's codec and velocity side by side; what they say is added in worker order.

    Args:
        start, workers, rate, steps, samples, gradient: see `harness.simulation`.
        name, density: of the codec.
        factor: momentum, before the codec or in it.
        warmup: samples before which updates are sent whole.
        sync: optimizer steps from one to the next that is sent whole.

    Returns:
        Parameters and optimizer steps.
    """
    params, kind = start.copy(), start.dtype.type
    inside = {"momentum": factor} if name == "topk" else {}
    each: list[Any] = [codecs.create(name, start.size, start.dtype, density=density, **inside) for _ in range(workers)]
    payload = np.empty(each[0].max_nbytes(), np.uint8)
    velocities = np.zeros((workers, start.size), start.dtype)
    applied, version = 0, 0
    for clock in range(max(map(steps, range(workers)))):
        counts = [samples(w, clock) if clock < steps(w) else 0 for w in range(workers)]
        if not sum(counts):
            continue
        lr, old = rate(applied), params.copy()
        updates = np.zeros_like(velocities)
        for w, count in enumerate(counts):
            if count:
                g = gradient(old, w, clock)
                velocities[w] = (kind(factor) if name != "topk" else kind(0)) * velocities[w] + g
                updates[w] = kind(-lr * count / sum(counts)) * velocities[w]
        if applied < warmup or (sync and (version + 1) % sync == 0):
            params += sum(update + codec.residual for update, codec in zip(updates, each, strict=True))
            for codec in each:
                codec.residual[:] = 0
        else:
            said = [payload[: codec.encode(u, payload)].copy() for u, codec in zip(updates, each, strict=True)]
            for one in said:
                each[0].decode_add(one, params)
        applied, version = applied + sum(counts), version + 1
    return params, version


def synchronous(
    start: Vector,
    workers: int,
    servers: int,
    name: str,
    density: float,
    factor: float,
    lr: float,
    steps: int,
    samples: Samples,
    gradient: Gradient,
    whole: Callable[[int], bool] = lambda clock: False,
) -> tuple[Vector, list[Vector]]:
    """sync: each server's shard with its group's mean; each worker has what the answers said.

    Args:
        start, workers, samples, gradient: see `harness.simulation`; all take the same number of steps.
        servers: of which each has a shard, and each worker a codec for it.
        name, density, factor: of the codec, and momentum before or in it.
        lr, steps: the rate and the number.
        whole: clocks at which all is sent as it is.

    Returns:
        The servers' parameters, and those of each worker.
    """
    kind = start.dtype.type
    shards = split(start.size, servers, 64 // start.itemsize)
    ups = [[Link(name, len(r), start.dtype, density, factor) for r in shards] for _ in range(workers)]
    downs = [Link(name, len(r), start.dtype, min(1.0, workers * density), 0.0) for r in shards]
    params, seen = start.copy(), [start.copy() for _ in range(workers)]
    velocities = np.zeros((workers, start.size), start.dtype)
    for clock in range(steps):
        counts = [samples(w, clock) for w in range(workers)]
        sums = came = np.zeros_like(start)
        for w, count in enumerate(counts):
            if not count:
                continue
            g = gradient(seen[w], w, clock)
            velocities[w] = (kind(factor) if name != "topk" else kind(0)) * velocities[w] + g
            came = np.zeros_like(start)
            for up, r in zip(ups[w], shards, strict=True):
                cut = slice(r.start, r.stop)
                if whole(clock):
                    came[cut] = velocities[w][cut] + up.codec.residual
                    up.codec.residual[:] = 0
                else:
                    up.say(velocities[w][cut], came[cut])
            sums = sums + kind(count) * came if sums.any() else kind(count) * came
        if sum(counts):
            single = sum(1 for c in counts if c) == 1
            scale = kind(1.0) if single else kind(1.0 / sum(counts))
            params[:] = multiply_add(-lr, scale * (came if single else sums) + kind(0) * params, params)
        for w in range(workers):
            for down, r in zip(downs, shards, strict=True):
                cut = slice(r.start, r.stop)
                if whole(clock):
                    seen[w][cut] = params[cut]
                else:
                    down.codec.residual[:] = 0
                    down.say(params[cut] - seen[w][cut], seen[w][cut])
    return params, seen


def flood(start: Vector, applied: Iterable[tuple[bytes, bool]], decode_add: Callable[[Any, Vector], object]) -> Vector:
    """A worker that applies updates in the order in which it got them.

    Args:
        start: where all begin.
        applied: each update's bytes, and whether it was sent whole; without bytes it changes nothing.
        decode_add: of the codec.
    """
    w = start.copy()
    for payload, whole in applied:
        change, data = np.zeros_like(start), np.frombuffer(payload, np.uint8)
        if data.size and whole:
            change += data.view(start.dtype)
        elif data.size:
            decode_add(data.copy(), change)
        w += change
    return w


def pairs(
    start: Vector, logs: Sequence[Sequence[tuple[str, Any]]], samples: Samples, gradient: Gradient
) -> list[Vector]:
    """All workers' steps and exchanges, one after the other, each as soon as what it waits for is there.

    Args:
        start, samples, gradient: see `harness.simulation`.
        logs: of each worker, in its order: ("step", rate), ("ask" or "answer", partner) when it sends what it has,
            ("move", None) when it goes half the way, and whatever else comes at its end.

    Returns:
        Each worker's parameters.
    """
    clock = [0] * len(logs)

    def step(k: int, x: Vector, rate: float) -> Vector:
        while not samples(k, clock[k]):
            clock[k] += 1
        x = multiply_add(-rate, gradient(x, k, clock[k]), x)
        clock[k] += 1
        return x

    x, at, post = _exchanges(start, logs, step)
    assert at == [len(log) for log in logs] and not any(post.values())
    return x


def pairs_of_which_some_die(
    start: Vector,
    logs: Sequence[Sequence[tuple[str, Any]]],
    dead: Sequence[int],
    rate: float,
    gradient: Callable[[Vector, Any], Vector],
) -> dict[int, Vector]:
    """As `pairs` where workers were killed, whose logs end anywhere; those that live drop exchanges with them.

    Args:
        start: see `harness.simulation`.
        logs: of each worker as there, but ("step", batch).
        dead: these workers.
        rate: of each step.
        gradient: of parameters and a batch.

    Returns:
        The parameters of each worker that lives.
    """
    x, at, post = _exchanges(start, logs, lambda _, x, batch: x - x.dtype.type(rate) * gradient(x, batch))
    living = [k for k in range(len(logs)) if k not in dead]
    assert [at[k] for k in living] == [len(logs[k]) for k in living]
    assert all(k in dead or other in dead for (k, other), left in post.items() if left)
    return {k: x[k] for k in living}


def _exchanges(
    start: Vector, logs: Sequence[Sequence[tuple[str, Any]]], step: Callable[[int, Vector, Any], Vector]
) -> tuple[list[Vector], list[int], dict[tuple[int, int], list[Vector]]]:
    """What `pairs` says; `step` is of a worker, its parameters and what its log has for it.

    Returns:
        Each worker's parameters, how much of its log came about, and by sender and receiver what nobody took.
    """
    x, at = [start.copy() for _ in logs], [0] * len(logs)
    sent: dict[int, Vector] = {}
    partner: dict[int, int] = {}
    post: dict[tuple[int, int], list[Vector]] = defaultdict(list)  # who asked may answer next, in other pairs
    progress = True
    while progress:
        progress = False
        for k, log in enumerate(logs):
            while at[k] < len(log):
                what, with_ = log[at[k]]
                if (what == "answer" and not post[with_, k]) or (what == "move" and not post[partner[k], k]):
                    break
                if what == "step":
                    x[k] = step(k, x[k], with_)
                elif what in ("ask", "answer"):
                    partner[k] = with_
                    sent[k] = x[k].copy()
                    post[k, with_].append(sent[k])
                elif what == "move":
                    x[k] += (post[partner[k], k].pop(0) - sent[k]) * x[k].dtype.type(0.5)
                at[k] += 1
                progress = True
    return x, at, post
