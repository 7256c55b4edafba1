"""The final weights reach the file of rank 0, from wherever they are; a full disk costs that file alone."""

import contextlib
import io

import numpy as np
import pytest

from psgd.checkpoint import final_weights
from psgd.nn.layout import Layout
from psgd.runtime import new_files

LAYOUT = Layout([("0.weight", (2, 3)), ("0.bias", (3,))])


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("last", [False, True])
def test_the_sources_weights_are_written_by_name(comm, tmp_path, last):
    source = comm.size - 1 if last else 0
    params = np.arange(LAYOUT.size, dtype=np.float32) if comm.rank == source else np.full(LAYOUT.size, np.nan, "f4")
    before = params.copy()
    final_weights.save(tmp_path / "w.npz", comm, source, params, LAYOUT)
    np.testing.assert_array_equal(params, before)
    if comm.rank == 0:
        with np.load(tmp_path / "w.npz") as found:
            assert found["0.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
            assert found["0.bias"].tolist() == [16, 17, 18]  # behind padding


@pytest.mark.ranks(3)
def test_a_file_that_cannot_be_written_costs_the_file_not_the_run(comm, tmp_path):
    path = tmp_path / "none" / "w.npz"
    with contextlib.redirect_stderr(io.StringIO()) as err:
        final_weights.save(path, comm, 1, np.zeros(LAYOUT.size, np.float32), LAYOUT)
    said = f"psgd: warning: --save {path}: cannot be written: No such file or directory\n"
    assert err.getvalue() == (said if comm.rank == 0 else "")
    assert new_files.lost()[-1:] == ([f"--save {path}"] if comm.rank == 0 else [])
