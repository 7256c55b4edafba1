"""The final weights of a run, written by rank 0 wherever they are."""

from pathlib import Path

import numpy as np
from mpi4py import MPI

from psgd.checkpoint import export
from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.nn.layout import Layout
from psgd.runtime.device_vectors import on_host
from psgd.runtime.new_files import lose


def save(path: Path, comm: MPI.Intracomm, source: int, params: Array, layout: Layout) -> None:
    """Writes the weights under their layout's names. Collective, blocks. A full disk costs the file, not the run.

    Args:
        path: `.npz` or `.pt`; rank 0 writes it.
        comm: all ranks of the run.
        source: the rank whose `params` are the final ones.
        params: there float32 of the layout's size, on the host or a GPU; the others' are not read.
        layout: names and shapes.
    """
    if comm.Get_rank() == 0:
        weights = np.empty(layout.size, np.float32) if source else on_host(params)
        if source:
            comm.Recv(weights, source=source)
        try:
            export.write(path, layout.views(weights), "--save")
        except UsageError as error:
            lose(f"--save {path}", str(error).removeprefix(f"--save {path}: "))
    elif comm.Get_rank() == source:
        comm.Send(on_host(params), dest=0)
