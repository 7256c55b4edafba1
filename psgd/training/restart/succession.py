"""Who takes whose place: a dead rank's goes to one that stands by, all others keep theirs."""

from collections.abc import Sequence


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
