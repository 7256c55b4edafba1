"""A server's run: its shard, its transport and the loop, with its part of the checkpoints."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from mpi4py import MPI

from psgd.checkpoint.saver import Saver
from psgd.checkpoint.state import State, Stead
from psgd.collectives.mpi.request_cleanup import keep_for_ever
from psgd.metrics.trace.span import Span, Traceable
from psgd.server.context import PushPullContext
from psgd.server.policy import Policy
from psgd.server.record_replay import Recorder
from psgd.server.server import Server, ServerOptions
from psgd.server.shard import Shard
from psgd.server.transports.gradient_memory import Vector
from psgd.server.transports.server_transport import MpiServerTransport

if TYPE_CHECKING:
    from psgd.server.replicas.held_shards import HeldShards
    from psgd.server.replicas.replicated_server import ReplicatedServer
    from psgd.server.replicas.replicated_server_side import ReplicatedServerTransport


class Serving:
    """One server's run.

    Args:
        context: of the run.
        policy: decides the order.
        scale: what a contribution of that staleness is multiplied by; None is 1.
        gradients: each worker's whole gradient where it can be read from here, else None.
        saver: of this rank.

    Attributes:
        transport: the wire.
    """

    def __init__(
        self,
        context: PushPullContext,
        policy: Policy,
        scale: Callable[[int], float] | None,
        gradients: list[Vector | None],
        saver: Saver,
    ) -> None:
        mesh = context.mesh
        self._context, self._policy, self._scale, self._saver = context, policy, scale, saver
        self._waiter = context.waiter
        self._part = part = context.shards[mesh.index]
        self.transport: MpiServerTransport
        if mesh.replicas:
            from psgd.server.replicas import replicated_parts

            self._shard, self.transport = replicated_parts.create(context, gradients)
            self._waiter = self.transport.waiter
            return
        self._shard = Shard(
            context.params[part.start : part.stop],
            context.server_optimizer,
            segment=context.segment,
            sum_over_shards=self._sum_over_servers,
            start=part.start,
        )
        if (squares := context.optimizer.squares) is not None:
            squares.wait = lambda request: self._waiter.soon(request.Test)
        params, ranges = self._shard.params, self._shard.ranges
        follows = mesh.index > 0 and not policy.fixed_order
        grads = [None if whole is None else whole[part.start : part.stop] for whole in gradients]
        if mesh.survival is not None:
            from psgd.server.surviving import pick_transport

            self.transport = pick_transport.transport(context, params, ranges, grads)
            self._waiter = self.transport.waiter
            if context.compression is not None:
                mesh.survival.also_lost = "; what its codec had left to send is lost"
        elif context.compression is None:
            self.transport = MpiServerTransport(
                mesh, params, ranges, context.waiter, grads=grads, follows=follows, settings=context.settings
            )
        else:
            from psgd.server.transports.compressed_server_transport import CompressedServerTransport

            self.transport = CompressedServerTransport(context, context.compression, params, ranges, follows)

    def spans(self) -> list[Traceable]:
        """What a trace times: waiting for the next message, and work on the shard."""
        shard = self._shard
        return [Span(self.transport, "next", "wait"), Span(shard, "apply", "apply"), Span(shard, "add", "apply")]

    def run(self) -> bool:
        """Serves until all workers are done. Blocks.

        Returns:
            Whether the run was asked to save and stop, and has.
        """
        mesh, saver = self._context.mesh, self._saver

        def save() -> None:
            stead = Stead()
            if mesh.replicas:
                from psgd.server.replicas import dead_parts

                stead = dead_parts.of(cast("ReplicatedServer", server), mesh.index, self._placed)
            saver.save(server.position.checkpoint_version, server.leaving, state, stead)

        def state() -> State:
            found = self._placed(server.state(), mesh.index)
            found.tensors.update(self.transport.arrays())
            return found

        options = ServerOptions(
            mesh.workers,
            mesh.index,
            mesh.servers,
            scale=self._scale,
            on_checkpoint=save if saver.active else None,
            requested=saver.wanted,
            on_start=None if saver.found is None else saver.recount,
        )
        server = self._server(options)

        def restore() -> None:
            held = cast("HeldShards", self._shard).held if mesh.replicas else [mesh.index]
            parts, facts, own = saver.parts({index: self._context.shards[index] for index in held})
            tensors = parts[mesh.index]
            if mesh.replicas:
                tensors = {f"{index}.{name}": each for index in held for name, each in parts[index].items()}
            server.restore(tensors, facts)
            self.transport.restore({} if own is None else own.tensors, saver.pulled(self._part))

        if saver.found is not None:
            saver.restored(restore)
        self._sum_over_servers(0.0)  # all are ready: server 0's seconds do not count what another compiles
        server.run()
        if isinstance(self._policy, Recorder):
            self._policy.close()
        self._take_other_parts()
        return server.leaving

    def _placed(self, state: State, shard: int) -> State:
        """The state of a shard with its place in the whole vector."""
        part = self._context.shards[shard]
        state.facts |= {"range": [part.start, part.stop, self._context.params.size], "cut": sorted(state.tensors)}
        return state

    def _server(self, options: ServerOptions) -> Server:
        parts = self.transport, self._shard, self._policy, options, self._context.metrics
        if (survival := self._context.mesh.survival) is None:
            return Server(*parts)
        from psgd.server.surviving.surviving_server import SurvivingServer

        kind = SurvivingServer
        if self._context.mesh.replicas:
            from psgd.server.replicas.replicated_server import ReplicatedServer

            kind = ReplicatedServer
        server = kind(*parts)
        server.hand_over = survival
        wire: Any = self.transport  # the server waits for a worker where others wait for the server
        wire.next = survival.waiting(wire.next, waits=wire.keeps_waiting)
        return server

    def _take_other_parts(self) -> None:
        """Fills the caller's vector with what the other servers have: it is whole on every rank then."""
        context, comm = self._context, self._context.mesh.server
        if context.mesh.replicas:
            cast("ReplicatedServerTransport", self.transport).share(context.shards)
            return
        if comm is None or comm.Get_size() == 1:
            return
        layout = [len(part) for part in context.shards], [part.start for part in context.shards]
        request = comm.Iallgatherv(MPI.IN_PLACE, [context.params, layout])
        try:
            self._waiter.flowing(request.Test)
        except BaseException:
            keep_for_ever(request)
            raise

    def _sum_over_servers(self, value: Any) -> Any:
        """Adds numbers, or arrays of float64 element by element, in server order: every server gets the same bits."""
        comm = self._context.mesh.server
        if comm is None or comm.Get_size() == 1:
            return value
        mine = np.atleast_1d(np.asarray(value, np.float64))
        parts = np.empty((comm.Get_size(), mine.size), np.float64)
        self._waiter.flowing(comm.Iallgather(mine, parts).Test)
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total if isinstance(value, np.ndarray) else float(total[0])
