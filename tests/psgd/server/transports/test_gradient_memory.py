import os

import numpy as np
import pytest

import psgd
from psgd.runtime.mesh import Mesh
from psgd.server.transports.gradient_memory import allocate


@pytest.mark.ranks(5)
@pytest.mark.parametrize("servers", [1, 2])
def test_servers_read_workers_memory(comm, servers):
    n = 1000
    with Mesh(comm, servers) as mesh:
        grads = allocate(mesh, n, np.dtype(np.float32))
        if mesh.role == "worker":
            assert grads.reached == [True] * servers
            assert not grads.own.any()
            grads.own[:] = mesh.index + 1
        comm.Barrier()
        if mesh.role == "server":
            assert grads.own is None
            for worker, view in enumerate(grads.workers):
                np.testing.assert_array_equal(view, worker + 1)
        comm.Barrier()


@pytest.mark.ranks(4)
@pytest.mark.parametrize("without", [[0, 1, 2, 3], [0], [2]])
def test_messages_where_memory_is_not_shared(comm, without):
    """Any mixture of ranks with and without shared memory trains to the same bits."""
    n = 50_000
    weights = []
    for off in ([], without):
        os.environ["PSGD_SHARED"] = "0" if comm.rank in off else "1"
        try:
            params = np.cos(np.arange(n)).astype(np.float32)
            with psgd.connect(comm, params, lr=0.1, rule="momentum", segment_bytes=65536) as ps:
                for step in range(3):
                    ps.grads[:] = np.sin(ps.params + step + ps.worker)
                    ps.step(ps.worker + 1)
            weights.append(params)
        finally:
            del os.environ["PSGD_SHARED"]
    np.testing.assert_array_equal(weights[0], weights[1])
