"""The error that all ranks raise where they disagree, with their descriptors in words."""

from collections.abc import Sequence
from typing import Any

from psgd.collectives.algorithms.catalog import name_of
from psgd.collectives.arguments.descriptor import CALLS, KINDS, ON_DEVICE, PREPARES, SHOWN_DIMENSIONS, STARTED, Words
from psgd.collectives.arguments.operations import operation_name
from psgd.collectives.mpi.agreement import group_by_text, join_texts
from psgd.collectives.shm import layout
from psgd.kernels.errors import AgreedContractError, AgreedUsageError, Error


def describe(descriptor: Sequence[int] | Words) -> str:
    """A descriptor in words: `Allreduce(float32, 100000 elements, SUM)`."""
    sign = int(descriptor[layout.SIGNATURE])
    call, op, kind, algorithm, root = sign & 127, sign >> 8 & 255, sign >> 16 & 127, sign >> 24 & 127, sign >> 32
    facts = []
    if kind:
        facts.append(KINDS[kind] if kind < len(KINDS) else "?")
        dimensions = int(descriptor[layout.DIMENSIONS])
        extents = tuple(int(n) for n in descriptor[layout.DIMENSIONS + 1 :][:dimensions])
        if 1 < dimensions <= SHOWN_DIMENSIONS:
            facts.append(f"shape {extents}")
        else:
            facts.append(f"{int(descriptor[layout.COUNT])} elements")
            if dimensions > SHOWN_DIMENSIONS:
                facts.append(f"{dimensions} dimensions #{int(descriptor[layout.SHAPE]):x}")
    elif int(descriptor[layout.COUNT]):
        facts.append(f"{int(descriptor[layout.COUNT])} bytes")
    if sign & ON_DEVICE:
        facts.append("on GPUs")
    if op:
        facts.append(operation_name(op))
    if sign & STARTED:
        facts.append("non-blocking")
    name = CALLS[call] if call < len(CALLS) else "?"
    if name in {"Bcast", "Reduce"}:
        facts.append(f"root {root}")
    if algorithm:
        facts.append(f"algorithm {name_of(algorithm)}")
    return f"{name}{'_init' if sign & PREPARES else ''}({', '.join(facts)})"


def judge(ranks: Sequence[int], descriptors: Sequence[Any], texts: Sequence[str]) -> Error:
    """Makes the error that all ranks raise.

    Args:
        ranks: in the communicator, ascending.
        descriptors: one for each.
        texts: what is wrong with each rank's own arguments; empty where they are right.

    Returns:
        A UsageError where some rank's own arguments are wrong, else a ContractError.
    """
    if any(texts):
        return AgreedUsageError(join_texts(texts, ranks))
    groups = group_by_text([(rank, _with_counts(each)) for rank, each in zip(ranks, descriptors, strict=True)])
    calls = ", ".join(f"{names} {text}" for names, text in groups)
    return AgreedContractError(f"ranks disagree on a collective call: {calls}; all must pass the same")


def _with_counts(descriptor: Any) -> str:
    """As `describe`; calls whose counts may differ get a mark of them as well."""
    text = describe(descriptor)
    if CALLS[int(descriptor[layout.SIGNATURE]) & 127] in {"Reduce_scatter", "Allgatherv"}:
        text = f"{text[:-1]}, counts #{int(descriptor[layout.SHAPE]):x})"
    return text
