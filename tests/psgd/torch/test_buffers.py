"""Buffers of several ranks."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")


class Buffers(torch.nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.register_buffer("mean", torch.tensor([1.0 + rank, 2.0 - rank], dtype=torch.float64))
        self.register_buffer("short", torch.full((3, 1), 0.5 * rank, dtype=torch.bfloat16))
        self.register_buffer("count", torch.tensor(10 + rank))
        self.register_buffer("flag", torch.tensor([rank == 1, False]))


def wait(request):
    while not request.Test():
        pass


@pytest.mark.ranks(3)
def test_the_mean_is_of_those_that_count_and_whole_numbers_are_the_first_ones(comm):
    from psgd.torch import buffers

    module = Buffers(comm.rank)
    buffers.average(list(module.buffers()), comm, wait, 1, counts=comm.rank != 0)
    assert module.mean.tolist() == ([2.5, 0.5] if comm.rank == 1 else [1.0 + comm.rank, 2.0 - comm.rank])
    buffers.broadcast(list(module.buffers()), comm, wait, 1, takes=comm.rank != 2)
    if comm.rank == 2:
        assert module.mean.tolist() == [3.0, 0.0]
    else:
        assert module.mean.tolist() == [2.5, 0.5] and module.short.flatten().tolist() == [0.75] * 3
        assert module.count.item() == 11 and module.flag.tolist() == [True, False]


def test_packed_bytes_fill_another_module_also_from_read_only_memory():
    from psgd.torch import buffers

    one, other = Buffers(1), Buffers(0)
    data = buffers.packed(list(one.buffers()))
    assert data.dtype == np.uint8 and data.size == 16 + 6 + 8 + 2
    data.flags.writeable = False
    buffers.unpack(list(other.buffers()), data)
    assert all(torch.equal(a, b) for a, b in zip(one.buffers(), other.buffers(), strict=True))


def test_buffers_of_several_workers_become_their_mean():
    from psgd.kernels.errors import CheckpointError
    from psgd.torch import buffers

    def saved(mean, count):
        module = torch.nn.BatchNorm1d(2)
        module.running_mean.fill_(mean)
        module.num_batches_tracked.fill_(count)
        return buffers.packed(list(module.buffers()))

    all_saved = [saved(1.0, 7), saved(2.0, 9)]
    for means, expected in ((True, 1.5), (False, 1.0)):
        module = torch.nn.BatchNorm1d(2)
        buffers.restore(list(module.buffers()), all_saved, means)
        assert module.running_mean.tolist() == [expected] * 2 and module.num_batches_tracked == 7
    buffers.restore(list(module.buffers()), saved(5.0, 1), True)
    assert module.running_mean.tolist() == [5.0] * 2
    with pytest.raises(CheckpointError, match="buffers of the module: expected 32 bytes, got 24"):
        buffers.restore(list(torch.nn.BatchNorm1d(3).buffers()), saved(5.0, 1), True)
