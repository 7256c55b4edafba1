"""Whether an estimate fits into the memory that there is, and if not, which batch would."""

from collections.abc import Callable

from psgd.estimate import activations
from psgd.estimate.rank_memory import ACTIVATIONS, BATCH, Estimate
from psgd.estimate.strategy_vectors import ACCUMULATED, GRADIENTS
from psgd.estimate.table import text


def verdict(estimate: Estimate, available: int, bytes_of: Callable[[int], int], batch: int) -> list[str]:
    """Returns lines for a reader: empty where it fits.

    Args:
        estimate: of the rank that needs the most.
        available: bytes for that rank.
        bytes_of: activations of so many samples.
        batch: samples of a rank and step.
    """
    if estimate.total <= available:
        return []
    short = f"a {estimate.role} needs {text(estimate.total)}, {text(available)} are there"
    if BATCH not in estimate.rows:
        return [f"{short}: the parameters do not fit"]
    sample = estimate.rows[BATCH] // batch
    fixed = estimate.total - estimate.rows[ACTIVATIONS] - estimate.rows[BATCH]

    def largest(room: int, most: int) -> int:
        return activations.largest_batch(lambda n: bytes_of(n) + n * sample, room, most)

    most = largest(available - fixed, batch - 1)
    if not most:
        name = max(estimate.rows, key=lambda name: estimate.rows[name])
        return [f"{short}: one sample does not fit; most are {name}, {text(estimate.rows[name])}"]
    said = [f"{short}: the batch does not fit, one sample does", f"--batch-size {most} fits"]
    more = 0 if ACCUMULATED in estimate.rows else estimate.rows[GRADIENTS]
    if parts := largest(available - fixed - more, most):
        said.append(f"--batch-size {parts} --accumulate {-(-batch // parts)} fits, and an update has as many samples")
    return said
