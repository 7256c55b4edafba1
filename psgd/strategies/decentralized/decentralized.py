"""decentralized: workers send each other their updates, or average in pairs, and nobody waits for anybody.

With links (`peers` all, ring or random:D) each worker sends its updates, compressed, and applies those of the others as
they arrive (Strom 2015): `flood_worker.py`. With pairs workers average their parameters two by two while they train
(AD-PSGD: Lian, Zhang, Zhang and Liu 2018): `gossip.py`.
"""

from collections.abc import Callable
from functools import partial

from psgd.kernels.errors import UsageError
from psgd.runtime.rng import generator
from psgd.runtime.validation import whole_number
from psgd.strategies.decentralized.flood_worker import FloodWorker
from psgd.strategies.decentralized.gossip import GossipWorker
from psgd.worker.context import RunContext
from psgd.worker.interface import Worker


def create(workers: int, peers: str = "all", window: int = 64) -> Callable[[RunContext], Worker]:
    """The strategy.

    Args:
        workers: how many there are.
        peers: who sends to whom: "all" to all; "ring", each to the next and the one before; "random:D", a connected
            graph in which each has about D others, the same on all workers and in all runs. Messages between workers
            without a link are passed on. Or "pairs": parameters are averaged by two.
        window: updates of its own with which a worker goes on before all others are known to have applied them, 1 or
            more; of those sent whole no more than `flood_worker.WHOLE_AHEAD`. Without effect with pairs.

    Raises:
        UsageError: an option that cannot be.
    """
    if whole_number("window", window) < 1:
        raise UsageError(f"window: expected 1 update or more that others need not have applied, got {window}")
    if peers == "pairs":
        return GossipWorker
    return partial(FloodWorker, links=links(peers, workers), window=int(window))


def links(peers: str, workers: int) -> list[list[int]]:
    """Each worker's neighbours, ascending.

    Args:
        peers: "all", "ring" or "random:D". A random graph is made of D/2 random rings; of an odd D the rest is a random
            matching. Where they meet in a link there is one less.
        workers: how many there are.

    Raises:
        UsageError: another text.
    """
    edges: set[tuple[int, int]] = set()

    def ring(order: list[int]) -> None:
        edges.update(zip(order, [*order[1:], order[0]], strict=True))

    degree = peers[len("random:") :] if isinstance(peers, str) and peers.startswith("random:") else ""
    if peers == "ring":
        ring(list(range(workers)))
    elif degree.isdecimal() and int(degree) >= 2:
        random = generator(0, "decentralized", "links")
        if int(degree) < workers - 1:
            for _ in range(int(degree) // 2):
                ring(random.permutation(workers).tolist())
            order = random.permutation(workers).tolist() if int(degree) % 2 else []
            edges.update(zip(order[0::2], order[1::2], strict=False))
        else:
            peers = "all"
    elif peers != "all":
        raise UsageError(f"peers: expected all, ring, random:D with D of 2 or more, or pairs, got {peers!r}")
    if peers == "all":
        edges.update((a, b) for a in range(workers) for b in range(a))
    return [sorted({a + b - k for a, b in edges if k in (a, b)} - {k}) for k in range(workers)]
