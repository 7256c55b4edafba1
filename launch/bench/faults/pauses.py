"""How long training stood still after each kill: until the log shows progress behind its line of the death."""

from collections.abc import Mapping, Sequence

from psgd.launch.bench.faults.pace import Event


def pauses_s(events: Sequence[Event], took_s: Mapping[int, float]) -> dict[int, float]:
    """Seconds from each kill until training has made progress again.

    The first progress behind a death is logged at once. Workers that wait for nobody may go on meanwhile: then this is
    the time until they do so in the new order.

    Args:
        events: of the log, whose times are of one clock: not those of a run that was begun again.
        took_s: of each rank that was killed, how long it took until the log told of it.

    Returns:
        By rank; without those after whose death there was nothing left to do.
    """
    found: dict[int, float] = {}
    waiting: dict[int, float] = {}
    for event in events:
        if event["event"] == "lost" and event["rank"] in took_s:
            waiting[event["rank"]] = event["time"] - took_s[event["rank"]]
        elif event["event"] == "progress":
            found |= {rank: event["time"] - killed for rank, killed in waiting.items()}
            waiting.clear()
    return found
