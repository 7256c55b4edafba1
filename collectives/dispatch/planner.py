"""From the arguments of a verb to the steps of its call: parsing, the choice of an algorithm, the signature."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from psgd.collectives.algorithms import catalog, intranode
from psgd.collectives.arguments import descriptor
from psgd.collectives.arguments.call import Call
from psgd.collectives.dispatch import dispatch, tuning
from psgd.collectives.dispatch.engine import Engine
from psgd.collectives.mpi.wait import Steps
from psgd.kernels.errors import AgreedUsageError, UsageError


@dataclass(frozen=True)
class CallPlan:
    """A call that is ready to be carried out.

    Attributes:
        verb: mpi4py's name of the collective.
        call: what this rank passed; None where that was wrong.
        text: what was wrong with it.
        algorithm: of the catalog.
        sign: the signature.
        on_host: of a device call: plans the same one on copies in the host's memory.
    """

    verb: str
    call: Call | None
    text: str = ""
    algorithm: str = "?"
    sign: int = 0
    on_host: Callable[[], "CallPlan"] | None = None

    def in_memory(self, engine: Engine) -> bool:
        """Whether it takes place in the node's memory, with no message beside."""
        call = self.call
        if call is None or call.job is not None or not engine.published:
            return False
        return call.verb == "Barrier" or catalog.ALGORITHMS[self.algorithm].needs == catalog.NODE

    def repeats(self, engine: Engine) -> bool:
        """Whether, there, a kernel can read the caller's memory again and again."""
        return self.in_memory(engine) and self.call is not None and not self.call.copied

    def steps(self, engine: Engine) -> Steps:
        """Carries it out. Wrong arguments are reported to the other ranks then."""
        if engine.size == 1:
            return _alone(self)
        if self.call is not None and self.call.job is not None:
            return self._on_device(engine)
        return dispatch.steps(engine, self.verb, self.call, self.text, self.algorithm, self.sign)

    def agreement(self, engine: Engine) -> Steps:
        """Compares it with the other ranks' and no more, as one that will be carried out often."""
        if engine.size == 1:
            return _alone(self, compares=True)
        return dispatch.agreement(engine, self.verb, self.call, self.text, self.sign | descriptor.PREPARES)

    def _on_device(self, engine: Engine) -> Steps:
        from psgd.collectives.dispatch.on_device import by_gpus

        assert self.call is not None and self.on_host is not None
        if not (yield from by_gpus(engine, self.call, self.sign, self.algorithm)):
            yield from self.on_host().steps(engine)


class Planner:
    """Makes plans, by the limits of one communicator.

    Args:
        engine: of the communicator, whichever.
        tuned: limits of the user's table, by collective.
        hierarchical: several nodes, each of whose ranks share memory, some with several ranks.
    """

    def __init__(self, engine: Engine, tuned: dict[str, tuning.Limits], hierarchical: bool) -> None:
        self._engine = engine
        self._tuned = tuned
        self._hierarchical = hierarchical
        self._limits: dict[str, tuning.Limits] = {}

    def plan(self, verb: str, parse: Callable[[], Call], algorithm: str | None, stream: Any) -> CallPlan:
        """Parses a call. What is wrong with it goes into the plan: the other ranks must know of it, or they wait.

        Args:
            verb: the collective.
            parse: makes the call of the arguments.
            algorithm: what the caller asked for.
            stream: that of the caller's work on device arrays.
        """
        try:
            call = parse() if stream is None else _on_stream(stream, parse)
            if algorithm is not None:
                dispatch.check_algorithm(verb, algorithm, self._engine, call)
        except Exception as error:
            return CallPlan(verb, None, f"{verb}: {error if isinstance(error, UsageError) else repr(error)}")
        number = 0 if algorithm is None else catalog.number(algorithm)
        sign = descriptor.signature(verb, call.kind, call.op, call.root, number)
        job = call.job
        if job is None:
            return CallPlan(verb, call, "", algorithm or self._choose(call), sign)
        sign |= descriptor.ON_DEVICE
        return CallPlan(verb, call, "", algorithm or "", sign, lambda: self.plan(verb, job.on_host, None, None))

    def limits_of(self, verb: str) -> tuning.Limits:
        """The limits by which a verb's algorithm is chosen: the user's where they name what there is."""
        if verb not in self._limits:
            limits = tuning.built_in(verb, self._engine.size, self._engine.local, self._hierarchical)
            tuned = self._tuned.get(tuning.family(verb), [])
            known = dispatch.available(verb, self._engine)
            self._limits[verb] = tuned if tuned and all(name in known for _, name in tuned) else limits
        return self._limits[verb]

    def _choose(self, call: Call) -> str:
        if call.op is not None and call.op.code < 0:
            return "native"
        name = tuning.choose(self.limits_of(call.verb), call.nbytes)
        if name == "native" and call.op is not None and not call.op.same_in_mpi(call.kind):
            engine = self._engine
            limits = tuning.built_in(call.verb, engine.size, engine.local, self._hierarchical)
            name = tuning.choose(limits, call.nbytes)
        if name in intranode.BEHIND and not intranode.fits_inline(call):
            return "slots"
        return name


def _on_stream(stream: Any, parse: Callable[[], Call]) -> Call:
    """Parses arguments of which the caller has given the stream on which they are worked on."""
    from psgd.collectives.arguments.device_arrays import on_stream

    with on_stream(stream):
        return parse()


def _alone(plan: CallPlan, compares: bool = False) -> Steps:
    """One rank: the result is a copy, unless this `compares` only. Errors are those of several ranks."""
    call = plan.call
    if call is None:
        raise AgreedUsageError(plan.text)
    if not compares:
        if call.send is not None and call.recv is not None:
            intranode.copy_own(call, call.ranges(1)[0])
        call.done()
    yield from ()
