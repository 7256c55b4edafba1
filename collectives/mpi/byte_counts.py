"""What a collective moves: bytes that one rank sends, and as many that it receives, in the least that is possible.

S bytes, P ranks (Patarasuk and Yuan 2009). What memory a transport shares or copies is not counted.
"""


def allreduce(ranks: int, nbytes: int) -> int:
    """2 (P - 1)/P S, for an array of S bytes."""
    return 2 * (ranks - 1) * nbytes // ranks


def bcast(ranks: int, nbytes: int) -> int:
    """(P - 1)/P S, the mean over the ranks."""
    return (ranks - 1) * nbytes // ranks


def allgather(ranks: int, nbytes: int) -> int:
    """(P - 1) S, where each rank has S bytes for all others."""
    return (ranks - 1) * nbytes
