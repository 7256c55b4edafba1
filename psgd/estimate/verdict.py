"""Whether an estimate fits into the memory that there is, and if not, which batch would."""

from psgd.estimate import activations
from psgd.estimate.rank_memory import ACTIVATIONS, BATCH, Estimate
from psgd.estimate.strategy_vectors import ACCUMULATED, GRADIENTS
from psgd.estimate.table import text
from psgd.nn.model import Model


def verdict(estimate: Estimate, available: int, model: Model, batch: int) -> list[str]:
    """Returns lines for a reader: empty where it fits.

    Args:
        estimate: of the rank that needs the most.
        available: bytes for that rank.
        model: what is trained, in that rank's form.
        batch: samples of a rank and step.
    """
    if estimate.total <= available:
        return []
    short = f"a {estimate.role} needs {text(estimate.total)}, {text(available)} are there"
    if BATCH not in estimate.rows:
        return [f"{short}: the parameters do not fit"]
    sample = estimate.rows[BATCH] // batch
    fixed = estimate.total - estimate.rows[ACTIVATIONS] - estimate.rows[BATCH]
    most = _largest(model, available - fixed, batch - 1, sample)
    if not most:
        largest = max(estimate.rows, key=lambda name: estimate.rows[name])
        return [f"{short}: one sample does not fit; most are {largest}, {text(estimate.rows[largest])}"]
    said = [f"{short}: the batch does not fit, one sample does", f"--batch-size {most} fits"]
    more = 0 if ACCUMULATED in estimate.rows else estimate.rows[GRADIENTS]
    if parts := _largest(model, available - fixed - more, most, sample):
        said.append(f"--batch-size {parts} --accumulate {-(-batch // parts)} fits, and an update has as many samples")
    return said


def _largest(model: Model, available: int, most: int, sample: int) -> int:
    """How many samples fit, with their activations: 0 to `most`."""
    found = activations.largest_batch(model, available, most)
    while found and activations.count(model, found) + found * sample > available:
        found -= 1
    return found
