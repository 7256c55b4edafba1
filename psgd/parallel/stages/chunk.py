"""One stage on one rank: its microbatches that are alive, and what comes in and goes out for each."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from psgd.kernels.array import Array
from psgd.kernels.errors import ContractError, UsageError
from psgd.nn.stage import Context, OnReady, Stage
from psgd.parallel.microbatches import Batch
from psgd.parallel.schedules.instruction import Instruction
from psgd.parallel.stages.captured_stage import CapturedStage
from psgd.parallel.stages.interface import WithLoss
from psgd.parallel.stages.links import Inlet, Links, Outlet

Send = Callable[[Outlet, Array, int], None]
"""Sends a message of a batch of so many samples; returns once the array may be used again."""


@dataclass
class _Alive:
    """A microbatch between its forward pass and the end of its backward pass; slots are -1 where there is none."""

    number: int
    context: Context
    x_slot: int = -1
    dy_slot: int = -1


class Chunk:
    """A stage with its links.

    Args:
        stage: bound by its owner; the last one is a model, or has a loss as one does. On a GPU a `CapturedStage`.
        links: with its neighbours.
        size: most samples of a microbatch.
        first: it takes the samples.
        last: it has the loss.

    Attributes:
        stage: as given.
        losses: of the microbatches, by number, where it is the last.
        early: a backward pass sends the input's gradient before it computes the weights'.
    """

    def __init__(self, stage: Stage | CapturedStage, links: Links, size: int, first: bool, last: bool) -> None:
        self.stage, self.early = stage, False
        self.losses: dict[int, Any] = {}
        self._links, self._size, self._first, self._last = links, size, first, last
        self._alive: dict[int, _Alive] = {}
        self._contexts: list[Context] = []
        self._free: list[int] = []  # a heap of their numbers, so that a microbatch has the same one in every batch
        self._begun = self._added = self._expected = 0  # microbatches: X done, gradient complete, all
        self._on_ready: OnReady | None = None

    @property
    def alive(self) -> int:
        """How many microbatches' activations it keeps now."""
        return len(self._alive)

    def begin(self, microbatches: int, on_ready: OnReady | None) -> None:
        """A batch begins: its first gradient overwrites, the others are added, and the last one makes it ready."""
        self.losses.clear()
        self._begun = self._added = 0
        self._expected, self._on_ready = microbatches, on_ready

    def ready(self, instruction: Instruction) -> bool:
        """Whether what an instruction needs from another stage is here. Does not block."""
        if instruction.kind == "F":
            return self._links.x is None or self._links.x.arrived()
        if instruction.kind in ("B", "X"):
            return self._links.dy is None or self._links.dy.arrived()
        return True

    def run(self, instruction: Instruction, batch: Batch, send: Send) -> None:
        """Computes, and sends what comes of it. Waits for nothing but `send`."""
        k = instruction.microbatch
        if instruction.kind == "F":
            self._forward(k, batch, send)
        elif instruction.kind == "W":
            self._weights(k)
        elif instruction.kind == "B" and self.early and self._links.dx is not None:
            self._backward(k, batch, send, half=True)
            self._weights(k)
        else:
            self._backward(k, batch, send, half=instruction.kind == "X")

    def evaluate(self, microbatch: int, batch: Batch, send: Send) -> tuple[float, float]:
        """A forward pass that no backward pass follows; returns right answers and summed loss of the last stage."""
        number = self._context()
        context = self._contexts[number]
        context.draws.on = False
        slot, x = self._input(microbatch, batch)
        right: float = 0
        loss = 0.0
        if self._last and isinstance(self.stage, WithLoss):
            right, loss = self.stage.evaluate(context, x, batch.y[batch.part(microbatch)], batch.tally)
        else:
            y = self.stage.forward(context, x)
            if self._links.y is not None:
                send(self._links.y, y, batch.samples)
        if self._links.x is not None:
            self._links.x.release(slot)
        heapq.heappush(self._free, number)
        return right, loss

    def close(self) -> None:
        """Frees the links."""
        self._links.close()

    def _context(self) -> int:
        """The first one that no microbatch has, on the device of the bound vectors."""
        if self._free:
            return heapq.heappop(self._free)
        self._contexts.append(self.stage.context(self._size, wants_dx=not self._first))
        return len(self._contexts) - 1

    def _input(self, microbatch: int, batch: Batch) -> tuple[int, Array]:
        if self._links.x is None:
            return -1, batch.x[batch.part(microbatch)]
        return self._taken(self._links.x, microbatch, batch)

    def _taken(self, link: Inlet, microbatch: int, batch: Batch) -> tuple[int, Array]:
        """The next message, if it is one of such a batch."""
        slot, message, total = link.take(batch.count(microbatch))
        if total != batch.samples:
            raise ContractError(
                f"pipeline: all ranks must pass the same number of samples, got {total} and {batch.samples} on "
                "neighbouring stages"
            )
        return slot, message

    def _forward(self, microbatch: int, batch: Batch, send: Send) -> None:
        number = self._context()
        context = self._contexts[number]
        if batch.key is not None:
            context.draw(batch.key, batch.numbers[batch.part(microbatch)])
        elif context.draws.wanted:
            raise UsageError("gradient: the model has dropout, so it needs draw(key, samples) before each gradient")
        slot, x = self._input(microbatch, batch)
        self._alive[microbatch] = _Alive(number, context, x_slot=slot)
        y = self.stage.forward(context, x)
        if self._links.y is not None:
            send(self._links.y, y, batch.samples)

    def _gradient_of_output(self, microbatch: int, batch: Batch) -> Any:
        """What backward begins with: from the loss, or from the stage behind."""
        one = self._alive[microbatch]
        if self._links.dy is not None:
            one.dy_slot, dy = self._taken(self._links.dy, microbatch, batch)
            return dy
        if not isinstance(self.stage, WithLoss):
            raise TypeError("the last stage has no loss")
        labels = batch.y[batch.part(microbatch)]
        dy, self.losses[microbatch] = self.stage.loss(one.context, labels, batch_size=batch.samples)
        return dy

    def _backward(self, microbatch: int, batch: Batch, send: Send, half: bool) -> None:
        dy = self._gradient_of_output(microbatch, batch)
        one = self._alive[microbatch]
        if half:
            dx = self.stage.backward_input(one.context, dy, accumulate=self._begun > 0)
            self._begun += 1
        else:
            dx = self.stage.backward(one.context, dy, self._ready_now(), accumulate=self._added > 0)
            self._added += 1
            # Before dx is sent: the stage before may have another message for it at once.
            if self._links.x is not None:
                self._links.x.release(one.x_slot)
        if self._links.dx is not None:
            send(self._links.dx, dx, batch.samples)
        if not half:
            self._end(microbatch)

    def _weights(self, microbatch: int) -> None:
        one = self._alive[microbatch]
        self.stage.backward_weights(one.context, self._ready_now(), accumulate=self._added > 0)
        self._added += 1
        if self._links.x is not None:
            self._links.x.release(one.x_slot)
        self._end(microbatch)

    def _ready_now(self) -> OnReady | None:
        """Who is told of gradients that the next microbatch completes."""
        return self._on_ready if self._added + 1 == self._expected else None

    def _end(self, microbatch: int) -> None:
        """Nothing of it is needed any more; what was sent may have lain in the slot of dy."""
        one = self._alive.pop(microbatch)
        if self._links.dy is not None:
            self._links.dy.release(one.dy_slot)
        heapq.heappush(self._free, one.number)
