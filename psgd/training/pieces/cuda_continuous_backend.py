"""Many steps at once by a pipeline on GPUs that is never empty: the samples of several steps lie there together."""

from collections.abc import Callable

import cupy
import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike, NDArray

from psgd.data import Dataset
from psgd.data.normalization import Statistics
from psgd.kernels.array import Array
from psgd.parallel.continuous.without_flushes import PipeDream
from psgd.training.pieces.continuous_passes import ContinuousPasses
from psgd.training.pieces.cuda_pipeline_backend import CudaPipelineBackend
from psgd.training.pieces.pipeline_passes import Batch


class CudaContinuousBackend(ContinuousPasses, CudaPipelineBackend):
    """As `CudaPipelineBackend`, with many steps at once.

    Args:
        pipeline: of this rank, on its current GPU.
        stages, dataset, statistics, batch_size, tokens, keep, dtype: as `CudaPipelineBackend`.
    """

    def __init__(
        self,
        pipeline: PipeDream,
        stages: MPI.Intracomm,
        dataset: Dataset,
        statistics: Statistics,
        batch_size: int,
        tokens: int = 1,
        keep: bool | None = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        super().__init__(pipeline, stages, dataset, statistics, batch_size, tokens, keep, dtype)
        if self._source is None:
            return
        # As many steps as there are stages have passes under way at most. The next one is made on the current stream,
        # so behind the backward passes of the step whose memory it takes.
        self._ring = [
            (cupy.empty_like(self._x[: self._most]), cupy.empty_like(self._y[: self._most]))
            for _ in range(stages.Get_size())
        ]

    def _lasting(self, turn: int, rows: NDArray[np.int64], touch: Callable[[Array], None]) -> Batch:
        if self._source is None:
            return None, None
        x, y = (part[: len(rows)] for part in self._ring[turn % len(self._ring)])
        self._source.choose(rows)
        found, _ = self._source.write(len(rows), x, y)
        if found.data.ptr != x.data.ptr:  # in memory of the source, which takes it again for a step soon after
            x[...] = found
        if self._first:
            touch(x)
        self._used()
        return self._shaped(x), y
