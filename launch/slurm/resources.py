"""Derives a job's size from its servers, workers, nodes and GPUs."""

from dataclasses import dataclass

from psgd.kernels.errors import UsageError
from psgd.launch.slurm.templates import Template


@dataclass(frozen=True)
class Resources:
    """What a job asks for.

    Attributes:
        servers: ranks that hold the parameters.
        nodes: number of nodes.
        tasks: ranks in all, those that stand by too.
        tasks_per_node: the most on one node.
    """

    servers: int
    nodes: int
    tasks: int
    tasks_per_node: int


def resources(
    kind: Template,
    *,
    servers: int | None,
    workers: int | None,
    nodes: int | None,
    gpus_per_node: int,
    serverless: bool,
    idle: int = 0,
    parts: int = 1,
) -> Resources:
    """Fills in what is None: workers fill the nodes, one a GPU where there are any, and nodes hold the workers.

    Args:
        kind: for what nothing else gives.
        servers: None: 1, or 0 with `serverless`.
        workers: None: what fills `nodes`, else the kind's.
        nodes: None: as many as the workers need.
        gpus_per_node: 0 for CPUs only.
        serverless: the strategy has no servers.
        idle: ranks beside these that stand by at first: spares, and workers that join later.
        parts: ranks of each worker and of each server: more than 1 where a model is in pieces.

    Raises:
        UsageError: a number out of range, or numbers that do not go together.
    """
    for flag, value, low in (
        ("--servers", servers, 0),
        ("--workers", workers, 1),
        ("--nodes", nodes, 1),
        ("--gpus-per-node", gpus_per_node, 0),
    ):
        if value is not None and value < low:
            raise UsageError(f"{flag} {value}: expected at least {low}")
    if serverless and servers:
        raise UsageError(f"--servers {servers}: the strategy has no servers; omit it")
    per_node = gpus_per_node or kind.per_node
    if workers is None:
        workers = max(1, (nodes * per_node if nodes and per_node else kind.workers) // parts)
    if servers is None:
        servers = 0 if serverless else 1
    if servers == 0 and workers > 1 and not serverless:
        raise UsageError(f"--servers 0: expected --workers 1 with it, got {workers}")
    if nodes is None:
        nodes = -(-(workers * parts + idle) // per_node) if per_node else 1
    tasks = (servers + workers) * parts + idle
    if nodes > tasks:
        raise UsageError(f"--nodes {nodes}: expected at most one per rank, got {tasks} ranks")
    if gpus_per_node and workers * parts > nodes * gpus_per_node:
        have = f"{nodes} nodes with {gpus_per_node} each"
        raise UsageError(f"--workers {workers}: expected at most one per GPU, got {have}; ask for more --nodes")
    return Resources(servers, nodes, tasks, -(-tasks // nodes))
