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
from typing import Any

import numpy as np

from psgd.checkpoint.declared import Arrays, Combine, Fact, Item
from psgd.checkpoint.state import State
from psgd.metrics.trace.span import Span, Traceable
from psgd.runtime.device_vectors import on_device
from psgd.strategies.easgd.exchange_order import ExchangeOrder
from psgd.strategies.easgd.force import Force
from psgd.strategies.easgd.round_robin import RoundRobinOrder
from psgd.strategies.easgd.shared import SharedOrder
from psgd.strategies.easgd.synchronous import SynchronousOrder
from psgd.worker.base import WorkerBase
from psgd.worker.context import Alone, RunContext
from psgd.worker.interface import Vector
from psgd.worker.serverless.checkpoint_votes import CheckpointVotes

Making = Callable[[RunContext, CheckpointVotes, int], ExchangeOrder]
"""Makes a worker's part of an order; the number is the period."""

ORDERS: dict[str, Making] = {
    "sync": SynchronousOrder,
    "round-robin": RoundRobinOrder,
    "async": partial(SharedOrder, locks=True),
    "hogwild": partial(SharedOrder, locks=False),
}


def _near(order: Making, context: RunContext) -> Callable[..., Any]:
    """Where the workers' parameters are on GPUs the centre is too, but for orders in which the host passes it on."""
    if context.mesh.survival is not None and isinstance(order, partial):
        from psgd.strategies.easgd.surviving_shared import SurvivingSharedOrder

        return partial(SurvivingSharedOrder, **order.keywords)
    if context.mesh.survival is not None and order is RoundRobinOrder:
        from psgd.strategies.easgd.surviving_round_robin import SurvivingRoundRobinOrder

        return SurvivingRoundRobinOrder
    if order is SynchronousOrder or not on_device(context.params):
        return order
    from psgd.strategies.easgd.on_gpu import OnHost

    return partial(OnHost, order=order)


def create(workers: int, period: int, easgd_order: str, rho: float | None) -> Alone:
    """The strategy.

    Args:
        workers: how many there are. One alone is tied to the centre too; all orders are the same then.
        easgd_order: "sync": all together, the same bits each run; "round-robin": one after the other, the original;
            "async": each when it comes, under a lock; "hogwild": without. The last two need all workers on one node.
        rho: a = eta * rho, with eta the learning rate of that step; None: a = 0.9 / workers.
        period: steps of a worker from one exchange to the next.

    A force that is not stable is refused once the schedule is known.
    """
    force = Force(workers, rho, easgd_order, together=easgd_order == "sync")
    order = ORDERS[easgd_order] if workers > 1 else SynchronousOrder
    return Alone(partial(EasgdWorker, order=order, force=force, period=period), force.check_all)


class EasgdWorker(WorkerBase):
    """A worker. It ends with the centre as everyone's parameters.

    The schedule goes by the samples of all workers that this one knows of: with sync and round-robin at its last
    exchange, so the learning rate changes at exchanges only; with async and hogwild at its last step.

    Attributes:
        evaluated_params: the centre, which is what to evaluate: not to be written to. With async and hogwild others may
            change it at any moment; else it changes in `step` only.
        version: exchanges with the centre behind `evaluated_params` (sync: of all together) when this worker had its
            last one.
        waited_s: seconds spent in exchanges.
        order: how it meets the centre.
    """

    def __init__(self, context: RunContext, order: Making, force: Force, period: int) -> None:
        self._votes = CheckpointVotes()
        super().__init__(context.params, np.zeros_like(context.params), context.mesh.index, self._votes)
        self._force, self._period = force, period
        self._schedule, self._factor = context.optimizer.schedule, context.optimizer.reduction_factor
        self._optimizer = context.optimizer.create(context.params)
        self.order: Any = _near(order, context)(context, self._votes, period)
        self._steps = 0

    @property
    def evaluated_params(self) -> Vector:
        centre: Vector = self.order.centre
        return centre

    def start(self) -> None:
        self.order.begin(self._resumed)

    def step(self, samples: int, loss: float) -> None:
        """Waits for others at every `period`-th step only, as the order says.

        Raises:
            UsageError: the schedule gives a learning rate that is not stable.
        """
        self.checkpoint.reached = False
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
        self.stop = order.stop or self.checkpoint.stopping

    def _move(self, samples: int, position: int) -> None:
        if samples:
            self._optimizer.take(self.grads, self._factor, position)

    def spans(self) -> list[Traceable]:
        order = self.order
        return [Span(order, "pull", "pull"), Span(order, "push", "push"), Span(self._optimizer, "take", "apply")]

    def report(self, accuracy: float, loss: float) -> None:
        self.order.report(accuracy, loss)

    def _kept(self) -> list[Item]:
        begins = "the workers' own parameters: each starts at the centre"
        return [
            Arrays({"params": self.params}, Combine.WEIGHTS, found=begins),
            *self._optimizer.kept(),
            Fact("calls", self, "_steps", Combine.FRESH),
            *self.order.kept(),
            self._votes,
        ]

    def state(self) -> State:
        self._saves_as = 0 if self.order.first else self._index
        return super().state()

    def _after_restore(self, own: State | None, others: Sequence[State]) -> list[str]:
        self.order.after_restore(own is not None)
        self.version = self.order.version
        return []

    def finish(self) -> None:
        order = self.order
        order.finish(self.waited_s)
        np.copyto(self.params, order.centre)
        self.version = order.version
        self.bytes_sent, self.bytes_received = order.bytes_sent, order.bytes_received
