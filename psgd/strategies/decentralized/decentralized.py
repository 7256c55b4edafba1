"""decentralized: workers send each other their updates, or average in pairs, and nobody waits for anybody.

With links (`peers` all, ring or random:D) each worker sends its updates, compressed, and applies those of the others as
they arrive (Strom 2015): `flood_worker.py`. With pairs workers average their parameters two by two while they train
(AD-PSGD: Lian, Zhang, Zhang and Liu 2018): `gossip.py`.
"""

from collections.abc import Callable
from functools import partial

from psgd.runtime.rng import generator
from psgd.strategies.decentralized.flood_worker import FloodWorker
from psgd.strategies.decentralized.gossip import GossipWorker
from psgd.worker.context import RunContext
from psgd.worker.interface import Worker


def create(workers: int, peers: str, window: int) -> Callable[[RunContext], Worker]:
    """The strategy.

    Args:
        workers: how many there are.
        peers: who sends to whom: "all" to all; "ring", each to the next and the one before; "random:D", a connected
            graph in which each has about D others, the same on all workers and in all runs. Messages between workers
            without a link are passed on. Or "pairs": parameters are averaged by two.
        window: updates of its own that a worker makes before all others are known to have applied them, 1 or
            more; of those sent whole no more than `flood_worker.WHOLE_AHEAD`. Without effect with pairs.
    """
    if peers == "pairs":
        return _averaging
    return partial(_flooding, peers=peers, window=window)


def _averaging(context: RunContext) -> Worker:
    if context.mesh.survival is None:
        return GossipWorker(context)
    from psgd.strategies.decentralized.surviving_gossip import SurvivingGossipWorker

    return SurvivingGossipWorker(context)


def _flooding(context: RunContext, peers: str, window: int) -> Worker:
    if context.mesh.survival is None:
        return FloodWorker(context, links(peers, context.workers.size), window)
    from psgd.strategies.decentralized.surviving_flood_worker import SurvivingFloodWorker

    return SurvivingFloodWorker(context, partial(links, peers), window)


def links(peers: str, workers: int) -> list[list[int]]:
    """Each worker's neighbours, ascending.

    Args:
        peers: "all", "ring" or "random:D". A random graph is made of D/2 random rings; of an odd D the rest is a random
            matching. Where they meet in a link there is one less.
        workers: how many there are.
    """
    edges: set[tuple[int, int]] = set()

    def ring(order: list[int]) -> None:
        edges.update(zip(order, [*order[1:], order[0]], strict=True))

    degree = int(peers.removeprefix("random:")) if peers.startswith("random:") else 0
    if peers == "ring":
        ring(list(range(workers)))
    elif degree:
        random = generator(0, "decentralized", "links")
        if degree < workers - 1:
            for _ in range(degree // 2):
                ring(random.permutation(workers).tolist())
            order = random.permutation(workers).tolist() if degree % 2 else []
            edges.update(zip(order[0::2], order[1::2], strict=False))
        else:
            peers = "all"
    if peers == "all":
        edges.update((a, b) for a in range(workers) for b in range(a))
    return [sorted({a + b - k for a, b in edges if k in (a, b)} - {k}) for k in range(workers)]
