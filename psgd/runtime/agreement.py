"""Do all ranks ask for the same? One exchange at the start; a disagreement is the same error on every rank."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from mpi4py import MPI

from psgd.kernels.errors import AgreedContractError, AgreedUsageError


def agree(
    comm: MPI.Intracomm,
    call: str,
    signature: Mapping[str, Any],
    complaint: str | None = None,
    where_given: Mapping[str, Any] | None = None,
) -> None:
    """Compares what the ranks pass to a collective call. Collective and blocking; the exchange is JSON text.

    Args:
        comm: the ranks that must agree.
        call: the call's name, for messages; empty where the ranks' complaints need no more words.
        signature: what must be the same on all ranks, as JSON values.
        complaint: what is wrong with this rank's arguments, or None.
        where_given: what must be the same on the ranks that give it, under the same keys on all; None is not given.

    Raises:
        AgreedUsageError: on all ranks, if one has a complaint; names that rank.
        AgreedContractError: on all ranks, if they differ; names the ranks and both sides.
    """
    given = dict(where_given or {})
    answers = gather(comm, {"complaint": complaint, "signature": dict(signature), "given": given})
    for rank, answer in enumerate(answers):
        if answer["complaint"]:
            where = f"{call} on rank {rank}: " if call else ""
            raise AgreedUsageError(where + answer["complaint"])
    for key in [*signature, *given]:
        values: dict[str, list[int]] = {}
        for rank, answer in enumerate(answers):
            value = (answer["signature"] if key in signature else answer["given"]).get(key)
            if value is not None or key in signature:
                values.setdefault(json.dumps(value, sort_keys=True), []).append(rank)
        if len(values) > 1:
            sides = "; ".join(f"{value} on rank(s) {_brief(ranks)}" for value, ranks in values.items())
            raise AgreedContractError(f"{call or 'options'}: all ranks must pass the same {key}, got {sides}")


def _brief(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown}, ... ({len(ranks)} in all)"


def gather(comm: MPI.Intracomm, value: Mapping[str, Any]) -> list[Any]:
    """Every rank's value on all ranks, in rank order, as JSON text. Collective and blocking."""
    text = bytearray(json.dumps(value, default=repr).encode())
    lengths = np.empty(comm.Get_size(), np.int64)
    comm.Allgather(np.array([len(text)], np.int64), lengths)
    ends = np.cumsum(lengths)
    together = bytearray(int(ends[-1]))
    comm.Allgatherv([text, MPI.BYTE], [together, (lengths.tolist(), (ends - lengths).tolist()), MPI.BYTE])
    return [
        json.loads(together[end - n : end].decode()) for n, end in zip(lengths.tolist(), ends.tolist(), strict=True)
    ]


def broadcast(comm: MPI.Intracomm, value: dict[str, Any]) -> dict[str, Any]:
    """Rank 0's value on all ranks, as JSON text. Collective and blocking."""
    text = bytearray(json.dumps(value).encode())
    length = np.array([len(text)], np.int64)
    comm.Bcast(length)
    if comm.Get_rank() != 0:
        text = bytearray(int(length[0]))
    comm.Bcast([text, MPI.BYTE])
    result: dict[str, Any] = json.loads(text.decode())
    return result
