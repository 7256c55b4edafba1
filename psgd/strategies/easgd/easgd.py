"""easgd: each worker trains parameters of its own, tied by a spring to a centre that they all share.

Elastic averaging SGD (Zhang, Choromanska and LeCun 2015; You, Buluc and Demmel 2017). At every `period`-th step of a
worker i, all from the old values,

    x_i <- x_i - eta g_i(x_i) - a (x_i - xc),    xc <- xc + a sum_i (x_i - xc)

and at the others x_i <- x_i - eta g_i(x_i). The sum is over all workers at once (order sync) or one worker after the
other. With momentum it is EAMSGD: rule and its state see the gradient alone, never the elastic term. The centre is what
is evaluated and what remains. What a worker does after its last exchange does not reach it.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint import restore as keeping
from psgd.checkpoint import vectors
from psgd.checkpoint.state import State
from psgd.kernels.errors import UsageError
from psgd.optim.optimizer import Stepper
from psgd.runtime.device_vectors import on_device
from psgd.runtime.validation import whole_number
from psgd.strategies.easgd.force import Force
from psgd.strategies.easgd.round_robin import RoundRobin
from psgd.strategies.easgd.shared import Shared
from psgd.strategies.easgd.synchronous import Synchronous
from psgd.worker.checkpoint_points import Cuts
from psgd.worker.context import Peers

Vector = NDArray[np.floating]


class Order(Protocol):
    """How a worker meets the centre, and what it tells the others.

    Attributes:
        centre: as this worker knows it.
        displacement: a (x_i - xc) of the last exchange, to be taken from the parameters after the step.
        samples: of all workers, as far as known: what the schedule goes by.
        version: exchanges that made `centre`.
        stop: worker 0 asks to stop.
        bytes_sent, bytes_received: in messages of its own.
    """

    centre: Vector
    displacement: Vector
    samples: int
    version: int
    stop: bool
    bytes_sent: int
    bytes_received: int

    def begin(self) -> None:
        """Gives all workers and the centre worker 0's parameters, where nothing was restored. Collective, blocks."""

    def note(self, samples: int, loss: float) -> None:
        """A step is being taken. Does not block."""

    def pull(self, rate: float, lr: float) -> None:
        """Takes `displacement` from the parameters as they are before the step. Blocks as the order says."""

    def push(self) -> None:
        """Ends the exchange, after the step. Blocks as the order says."""

    def meet(self, steps: int) -> None:
        """This worker has taken so many steps: cuts them here, where the order is not one that keeps pace."""

    def state(self) -> State:
        """What there is to save at a cut beside the worker's own: `centre` on one worker, which says so."""

    def restore(self, state: State | None, others: Sequence[State]) -> None:
        """Takes that up, before `begin`, which gives the centre to all then and leaves the workers' parameters."""

    def report(self, accuracy: float, loss: float) -> None:
        """Counts an evaluation."""

    def finish(self, waited_s: float) -> None:
        """No more steps; returns with the final centre once all workers are done. Blocks."""


Making = Callable[[Peers, Cuts, int], Order]
"""Makes a worker's part of an order; the number is the period."""

ORDERS: dict[str, Making] = {
    "sync": Synchronous,
    "round-robin": RoundRobin,
    "async": partial(Shared, locks=True),
    "hogwild": partial(Shared, locks=False),
}


def _near(order: Making, peers: Peers) -> Callable[..., Any]:
    """Where the workers' parameters are on GPUs the centre is too, but for orders in which the host passes it on."""
    if order is Synchronous or not on_device(peers.params):
        return order
    from psgd.strategies.easgd.on_gpu import OnHost

    return partial(OnHost, order=order)


def create(
    workers: int, easgd_order: str = "sync", rho: float | None = None, period: int = 8
) -> Callable[[Peers], "Elastic"]:
    """The strategy.

    Args:
        workers: how many there are.
        easgd_order: "sync": all together, the same bits each run; "round-robin": one after the other, the original;
            "async": each when it comes, under a lock; "hogwild": without. The last two need all workers on one node.
        rho: a = eta * rho, with eta the rate of that step; None: a = 0.9 / workers, whatever the rate.
        period: steps of a worker from one exchange to the next.

    Raises:
        UsageError: an option that cannot be. A force that is not stable is one too, told when the schedule is known.
    """
    if easgd_order not in ORDERS:
        raise UsageError(f"easgd_order: expected one of {', '.join(ORDERS)}, got {easgd_order!r}")
    if whole_number("period", period) < 1:
        raise UsageError(f"period: expected 1 step or more between exchanges, got {period}")
    force = Force(workers, rho, easgd_order, together=easgd_order == "sync")
    return partial(Elastic, order=ORDERS[easgd_order], force=force, period=int(period))


class Elastic(Cuts):
    """A worker. Implements `psgd.worker.interface.Client`.

    The schedule goes by the samples of all workers that this one has heard of: with sync and round-robin at its last
    exchange, so the rate changes at exchanges only; with async and hogwild at its last step.

    Attributes:
        params: this worker's own, the caller's vector; the centre after `finish`.
        evaluated_params: the centre, which is what to evaluate: not to be written to. With async and hogwild others may
            change it at any moment; else it changes in `step` only.
        version: exchanges with the centre behind `evaluated_params` (sync: of all together) when this worker had its
            last one.
        waited_s: seconds spent in exchanges.
        order: how it meets the centre.
    """

    def __init__(self, peers: Peers, order: Making, force: Force, period: int) -> None:
        super().__init__()
        force.check_all(peers.schedule)  # before anybody waits for anybody, so that all find it by themselves
        self.params = peers.params
        self.grads = np.zeros_like(peers.params)
        self.version = 0
        self.waited_s = 0.0
        self.stop = False
        self.bytes_sent = self.bytes_received = 0
        self._force, self._period = force, period
        self._schedule, self._factor = peers.schedule, peers.reduction_factor
        self._stepper = Stepper(peers)
        self.order: Any = _near(order, peers)(peers, self, period)
        self._steps = 0

    @property
    def evaluated_params(self) -> Vector:
        """See the class."""
        centre: Vector = self.order.centre
        return centre

    def start(self) -> None:
        """See `Client`."""
        self.order.begin()

    def overlap(self, samples: int) -> None:
        """See `Client`."""

    def step(self, samples: int, loss: float) -> None:
        """See `Client`. Waits for others at every `period`-th step only, as the order says.

        Raises:
            UsageError: the schedule gives a rate that is not stable.
        """
        self.saving = False
        order, position = self.order, self.order.samples
        order.note(samples, loss)
        self._steps += 1
        if self._steps % self._period:
            self._move(samples, position)
        else:
            lr = self._schedule(position)
            self._force.check(lr)
            start = time.perf_counter()
            order.pull(self._force.rate(lr), lr)
            moving = time.perf_counter()
            self._move(samples, position)
            np.subtract(self.params, order.displacement, out=self.params)
            moved = time.perf_counter()
            order.push()
            self.waited_s += time.perf_counter() - moved + moving - start
            self.version = order.version
        order.meet(self._steps)
        self.stop = order.stop or self.leaving

    def _move(self, samples: int, position: int) -> None:
        if samples:
            self._stepper.take(self.grads, self._factor, position)

    def report(self, accuracy: float, loss: float) -> None:
        """See `Client`."""
        self.order.report(accuracy, loss)

    def state(self) -> State:
        """See `Client`."""
        kept = self.order.state()
        facts = {"steps": self._stepper.version, "calls": self._steps} | self.facts()
        return State({"params": self.params} | self._stepper.arrays | kept.tensors, facts | kept.facts)

    def restore(self, state: State | None, others: Sequence[State]) -> list[str]:
        """See `Client`. With another number of workers each begins at the centre."""
        self.order.restore(state, others)
        self.version = self.order.version
        if state is None:
            self.params[:] = vectors.weights(others)
            return ["the workers' own parameters: each begins at the centre", *self._stepper.share(others)]
        keeping.put_back({"params": self.params} | self._stepper.arrays, state)
        self._stepper.version = int(keeping.fact(state, "steps"))
        self._steps = int(keeping.fact(state, "calls"))
        return []

    def finish(self) -> None:
        """See `Client`. Everyone's parameters become the centre."""
        order = self.order
        order.finish(self.waited_s)
        np.copyto(self.params, order.centre)
        self.version = order.version
        self.bytes_sent, self.bytes_received = order.bytes_sent, order.bytes_received
