"""CUDA graphs: recorded, not run; run by one call."""

import numpy as np
import pytest
from harness.device import cupy

pytestmark = pytest.mark.gpu


def test_a_graph_runs_when_it_is_launched(monkeypatch):
    xp = cupy()
    from psgd.kernels.device import blas
    from psgd.kernels.device.graphs import GraphRecorder, wanted

    a, out = xp.eye(4, dtype=np.float32) * 2, xp.zeros((4, 4), np.float32)
    blas.matmul(a, a, out)
    out.fill(0)
    graph = GraphRecorder().record(lambda: blas.matmul(a, a, out))
    assert float(out.sum()) == 0
    graph.launch(xp.cuda.get_current_stream())
    assert float(out.sum()) == 16
    assert wanted()
    monkeypatch.setenv("PSGD_CUDA_GRAPHS", "0")
    assert not wanted()
