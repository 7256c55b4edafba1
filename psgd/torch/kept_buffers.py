"""What a module has beside its trained parameters: all start from the first worker's, and settle it at the end."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.kernels.notice import say
from psgd.torch import buffers, parameters
from psgd.worker.bound_model import Wait

_NAME = "psgd.torch.buffers"


class KeptBuffers:
    """The buffers and frozen parameters of one rank's module; the methods are those of `BoundModel`.

    Args:
        module: whose they are.
        mode: what every rank has in the end; as of `psgd.torch.wrap`.

    Attributes:
        mode: as given.
        signature: what all ranks must have alike.
        frozen: the parameters that are not trained, by name.
    """

    def __init__(self, module: torch.nn.Module, mode: str) -> None:
        self._module, self.mode = module, buffers.checked(mode)
        self.signature = f"buffers={mode}: {buffers.described(module)}"
        self.frozen = parameters.frozen(module)

    def begin(self, comm: MPI.Comm, wait: Wait, kept: Mapping[str, Any]) -> None:
        """All start from the first worker's, or from those of a checkpoint. Collective, blocks."""
        buffers.broadcast(self._all(), comm, wait, 0)
        if (saved := kept.get(_NAME)) is not None:
            buffers.restore(list(self._module.buffers()), saved, means=self.mode != "broadcast")

    def kept(self) -> dict[str, NDArray[np.uint8]]:
        """What a checkpoint has of them."""
        data = buffers.packed(list(self._module.buffers()))
        return {_NAME: data} if data.size else {}

    def put_back(self, kept: Mapping[str, Any]) -> None:
        """The buffers are again as `kept` has given them."""
        if (data := kept.get(_NAME)) is not None:
            buffers.unpack(list(self._module.buffers()), data)

    def end(self, comm: MPI.Comm, wait: Wait, first: int, steps: int | None) -> None:
        """All have what the mode says. Collective, blocks."""
        if steps == 0 and comm.rank == first:
            say(
                "warning: the first worker took no step, so its training is lost: call ps.step() or the step of the "
                "DistributedOptimizer, instead of the old optimizer's"
            )
        if self.mode == "average":
            buffers.average(list(self._module.buffers()), comm, wait, first, bool(steps))
        buffers.broadcast(self._all(), comm, wait, first, takes=self.mode != "local" or steps is None)

    def _all(self) -> list[torch.Tensor]:
        return [*self._module.buffers(), *(parameter for _, parameter in self.frozen)]
