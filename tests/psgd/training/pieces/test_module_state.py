"""A module of several ranks in one file: parts, whole numbers, few bits, and the order of the whole."""

import numpy as np
import pytest

import psgd
from psgd.kernels.errors import UsageError

torch = pytest.importorskip("torch")
from psgd.training.pieces.module_state import write  # noqa: E402 -- where PyTorch is

nn = torch.nn


def made():
    torch.manual_seed(2)
    module = nn.Sequential(nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)), nn.Linear(3, 2))
    module.register_buffer("none", torch.zeros(0, 3))
    module.register_buffer("few", torch.full((2,), 0.1, dtype=torch.bfloat16))
    return module


@pytest.mark.ranks(2)
@pytest.mark.parametrize("ending", ["npz", "pt"])
def test_all_tensors_are_written_in_the_order_of_the_whole(comm, tmp_path, ending):
    whole, path = made(), tmp_path / f"w.{ending}"
    names = list(whole.state_dict())
    mine = psgd.torch.cut_by_tensor(made(), comm)
    if comm.rank == 0:  # the second rank has the last layer alone
        del mine[2]
    write(path, mine, names, comm, "--save")
    if comm.rank:
        return
    if ending == "pt":
        found = torch.load(path)
        assert list(found) == names and all(torch.equal(found[n], each) for n, each in whole.state_dict().items())
    else:
        with np.load(path) as found:
            assert found.files == names and found["0.num_batches_tracked"].dtype == np.int64
            assert np.array_equal(found["1.0.weight"], whole[1][0].weight.detach().numpy())


@pytest.mark.ranks(2)
def test_where_nothing_can_be_written_nobody_waits(comm, tmp_path):
    whole = made()
    mine = psgd.torch.cut_by_tensor(made(), comm)
    if comm.rank:
        write(tmp_path / "no" / "w.npz", mine, list(whole.state_dict()), comm, "--save")
    else:
        with pytest.raises(UsageError, match="cannot be written"):
            write(tmp_path / "no" / "w.npz", mine, list(whole.state_dict()), comm, "--save")
