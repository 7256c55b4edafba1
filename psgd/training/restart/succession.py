"""Who takes whose place: a dead rank's goes to one that stands by, all others keep theirs."""

from collections.abc import Sequence


def led(places: Sequence[int | None], leader: int) -> list[int]:
    """The ranks after a run that has gone on without some: the one that leads it, the others, those that stand by."""

    def key(rank: int) -> tuple[bool, int]:
        place = places[rank]
        return place is None, rank if place is None else place

    return [leader, *(rank for rank in sorted(range(len(places)), key=key) if rank != leader)]


def ordered(places: Sequence[int | None], wanted: int) -> list[int]:
    """The ranks in their new order: the first `wanted` act, the others stand by.

    Args:
        places: by rank, its place in the run until now; None stands by.
        wanted: how many act; at most as many as there are.
    """
    kept = {place: rank for rank, place in enumerate(places) if place is not None and place < wanted}
    others = iter([rank for rank in range(len(places)) if rank not in kept.values()])
    acting = [kept[place] if place in kept else next(others) for place in range(wanted)]
    return [*acting, *others]
