"""The weights of a model in pieces in one file, gathered one parameter at a time."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.checkpoint import export
from psgd.nn.layout import Layout, Parameter
from psgd.runtime.agreement import gather

Owners = dict[str, list[tuple[int, Parameter]]]


def owners(layouts: list[Layout]) -> Owners:
    """For each parameter, by the order of the ranks, which of them has which part; each part once."""
    found: Owners = {}
    for rank, layout in enumerate(layouts):
        for parameter in layout.parameters:
            parts = found.setdefault(parameter.name, [])
            if parameter.slices not in [each.slices for _, each in parts]:
                parts.append((rank, parameter))
    return found


def places(whole: Layout) -> list[tuple[str, str]]:
    """All names of a whole model's parameters, each with the one that has the place."""
    return [(each.name, each.name) for each in whole.parameters] + list(whole.tied)


def write(
    target: Path,
    vector: NDArray[Any],
    layout: Layout,
    whole: Layout,
    comm: MPI.Intracomm,
    what: str,
    views: Mapping[str, NDArray[Any]] | None = None,
) -> None:
    """Rank 0 writes all parameters under all their names; it has one of them at a time. Collective, blocks.

    Args:
        target: an `.npz` file, or `.pt`, in which parameters are as PyTorch's layers have them.
        vector: this rank's part.
        layout: of the vector.
        whole: of the whole model, with its ties; no rank needs such a vector.
        comm: the ranks that hold one copy together.
        what: the option, for messages.
        views: gives each parameter of this rank by name; None: those of the vector.

    Raises:
        UsageError: on rank 0, if it cannot be written; the others have sent their parts.
    """
    layouts = [Layout.from_json(each["layout"]) for each in gather(comm, {"layout": layout.to_json()})]
    views = layout.views(vector) if views is None else views
    pieces = _whole(views, vector.dtype, comm, owners(layouts), places(whole))
    write_pieces(target, in_form(target, pieces, whole), comm, what)


def in_form(
    target: Path, pieces: Iterator[tuple[str, NDArray[Any]]], whole: Layout
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Whole parameters by name, as a file has them: in `.pt` as PyTorch's layers do."""
    forms, place_of = dict(whole.torch) if target.suffix == ".pt" else {}, dict(places(whole))
    for name, array in pieces:
        form = forms.get(place_of[name])
        yield name, array if form is None else form.of(array)


def write_pieces(target: Path, pieces: Iterator[tuple[str, NDArray[Any]]], comm: MPI.Intracomm, what: str) -> None:
    """Rank 0 writes arrays as they come; on others what gives them is collective and gives none. Collective, blocks.

    Raises:
        UsageError: on rank 0, if it cannot be written; the others have sent their parts.
    """
    if comm.Get_rank() == 0:
        try:
            export.write_named(target, _Lazy(pieces), what)
        finally:
            _exhaust(pieces)  # so that no rank waits where this one could not write
    else:
        _exhaust(pieces)


class _Lazy(Mapping[str, Any]):
    """Names and arrays that are made as they are iterated over, once."""

    def __init__(self, pairs: Iterator[tuple[str, NDArray[Any]]]) -> None:
        self._pairs = pairs

    def items(self) -> Any:
        return self._pairs

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._pairs)

    def __len__(self) -> int:
        raise TypeError("known at the end only")

    def __getitem__(self, name: str) -> Any:
        raise KeyError(name)


def _exhaust(pairs: Iterator[tuple[str, NDArray[Any]]]) -> None:
    for _ in pairs:
        pass


def _whole(
    views: Mapping[str, NDArray[Any]], dtype: Any, comm: MPI.Intracomm, by_name: Owners, every: list[tuple[str, str]]
) -> Iterator[tuple[str, NDArray[Any]]]:
    """On rank 0 each parameter, whole; on other ranks nothing, but they send."""
    rank = comm.Get_rank()
    for name, place in every:
        parts = by_name[place]
        if rank:
            for owner, _ in parts:
                if owner == rank:
                    comm.Send(np.ascontiguousarray(views[place]), 0)
            continue
        whole = np.empty(parts[0][1].global_shape, dtype)
        for owner, part in parts:
            piece = views[place] if owner == 0 else np.empty(part.shape, dtype)
            if owner:
                comm.Recv(piece, owner)
            whole[part.slices] = piece
        yield name, whole
