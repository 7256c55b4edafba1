"""Whether an estimate fits into the memory that there is, and if not, what would."""

from psgd.estimate import activations
from psgd.estimate.rank_memory import ACTIVATIONS, BATCH, Estimate
from psgd.nn.model import Model


def verdict(estimate: Estimate, available: int, model: Model, batch: int) -> list[str]:
    """Returns lines for a reader: empty where it fits.

    Args:
        estimate: of the rank that needs the most.
        available: bytes for that rank.
        model: what is trained.
        batch: samples of a rank and step.
    """
    if estimate.total <= available:
        return []
    short = f"needs {text(estimate.total)}, {text(available)} are there"
    if estimate.role == "server":
        return [f"a {estimate.role} {short}: the parameters do not fit", "more --servers hold a part of them each"]
    sample = estimate.rows[BATCH] // batch
    fixed = estimate.total - estimate.rows[ACTIVATIONS] - estimate.rows[BATCH]
    if fixed + activations.count(model, 1) + sample > available:
        largest = max(estimate.rows, key=lambda name: estimate.rows[name])
        return [
            f"a {estimate.role} {short}: one sample does not fit; most are {largest}, {text(estimate.rows[largest])}"
        ]
    most = activations.largest_batch(model, available - fixed, batch - 1)
    while most and fixed + activations.count(model, most) + most * sample > available:
        most -= 1
    steps = -(-batch // most)
    return [
        f"a {estimate.role} {short}: the batch does not fit, one sample does",
        f"--batch-size {most} fits; with --accumulate {steps} an update has as many samples",
    ]


def text(nbytes: float) -> str:
    """Bytes as GB, MB or kB of 1000, three digits."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= factor:
            return f"{nbytes / factor:.3g} {unit}" if nbytes < 999.5 * factor else f"{nbytes / factor:.0f} {unit}"
    return f"{nbytes:.0f} bytes"
