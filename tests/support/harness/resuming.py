"""For tests of cuts of strategies without servers: runs that are cut, their states, and runs that go on from them."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import psgd
from psgd.checkpoint.state import State
from psgd.metrics.run_metrics import RunMetrics


def gradient(w: NDArray[Any], worker: int, clock: int) -> NDArray[Any]:
    """Depends on parameters, worker, clock and element."""
    ramp = np.arange(1, w.size + 1, dtype=w.dtype) / w.size
    result: NDArray[Any] = (w * ramp + np.sin(ramp * 30 * (worker + 1) + clock)).astype(w.dtype)
    return result


def samples_of(worker: int, clock: int) -> int:
    """Unequal, at times none."""
    return (3 * worker + 5 * clock + 2) % 7


def rate(samples: float) -> float:
    """Falls, so that a wrong position in the schedule shows."""
    return 0.2 / (1.0 + samples / 50.0)


def kept(state: State) -> State:
    """A copy, as it would come from a file."""
    return State({name: np.array(array) for name, array in state.tensors.items()}, json.loads(json.dumps(state.facts)))


class Watched:
    """An object whose calls go to a function instead; all else is its own."""

    def __init__(self, what: Any, call: Callable[..., Any]) -> None:
        self._what, self._call = what, call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._what, name)

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)


class Run:
    """One worker's part in a run. Collective over `comm`.

    Args:
        comm: the workers.
        size: elements of the vector.
        steps: of each worker.
        options: of `psgd.connect`.
        every: cuts.
        ask: from steps of this worker to whether all are to stop after the cut that it asks for before that step.
        saved: what this worker goes on from, with all others': its clock and state, or None where it has none.
        others: all states of that cut.
        pause: called before each step.
        dtype: of the vector.
        gradient: of parameters, worker and clock.

    Attributes:
        params: in the end.
        clock: steps of this worker in the end.
        cuts: for each cut its name, this worker's clock there, and a copy of its state.
        put: sum of what this worker's updates were before a codec made them small, where there is one.
        lines: what could not be kept.
        metrics, client: of the run.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        size: int,
        steps: Callable[[int], int],
        options: Mapping[str, Any],
        every: int = 0,
        ask: Mapping[int, bool] | None = None,
        saved: tuple[int, State | None] | None = None,
        others: Sequence[State] = (),
        pause: Callable[[int], object] = lambda clock: None,
        dtype: Any = np.float32,
        gradient: Callable[[NDArray[Any], int, int], NDArray[Any]] = gradient,
    ) -> None:
        first = comm.rank == 0 and saved is None
        self.params = np.cos(np.arange(size)).astype(dtype) if first else np.full(size, np.nan, dtype)
        self.cuts: list[tuple[int, int, State]] = []
        self.lines: list[str] = []
        self.clock = 0 if saved is None else saved[0]
        self.metrics = RunMetrics(comm.size)
        connection = psgd.connect(comm, self.params, **{"lr": rate, "metrics": self.metrics} | dict(options))
        options = connection._options

        def prepared(peers: Any) -> Any:
            self.client = client = options.strategy(peers)
            start = client.start
            self._note_updates(getattr(client, "updates", client))

            def starting() -> None:
                client.checkpoint.on_reached = self._save
                if saved is not None:
                    self.lines = client.restore(saved[1], others)
                    if others and comm.rank == 0:
                        self.metrics.restore(others[0].facts["metrics"])
                if every:
                    client.checkpoint.every = every
                start()

            client.start = starting
            return client

        connection._options = replace(options, strategy=prepared)
        with connection as ps:
            self.before = ps.params.copy()
            comm.Barrier()  # before others change what they share
            while self.clock < steps(ps.worker) and not ps.stop:
                if ask and self.clock in ask:
                    self.client.checkpoint.ask(ask[self.clock])
                pause(self.clock)
                ps.grads[:] = gradient(ps.params, ps.worker, self.clock)
                ps.step(samples_of(ps.worker, self.clock), 1.0)
                self.clock += 1
                if self.client.checkpoint.reached:
                    self._save()
            self.end = (ps.params.copy(), time.perf_counter())
        self.connection = connection

    def _note_updates(self, owner: Any) -> None:
        self.put: NDArray[np.float64] | float = 0.0
        if (before := getattr(owner, "_before", None)) is None or not callable(before):
            return

        def noting(out: NDArray[Any], *rest: Any) -> bool:
            fine: bool = before(out, *rest)
            self.put = self.put + out
            return fine

        owner._before = Watched(before, noting)

    def _save(self) -> None:
        assert self.client.checkpoint.reached
        state = self.client.state()
        state.facts["metrics"] = self.metrics.facts()
        self.cuts.append((self.client.checkpoint.step, self.clock, kept(state)))
