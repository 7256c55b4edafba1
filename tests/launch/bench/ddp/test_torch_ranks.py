"""PyTorch's process group of a benchmark."""

import pytest

torch = pytest.importorskip("torch")


@pytest.mark.ranks(2, timeout=120)
def test_all_ranks_are_in_it_and_it_ends(comm):
    from psgd.launch.bench.ddp.torch_ranks import process_group

    for _ in range(2):
        with process_group(comm, "gloo"):
            value = torch.tensor([comm.rank + 1])
            torch.distributed.all_reduce(value)
            assert int(value) == 3 and torch.distributed.get_rank() == comm.rank
        assert not torch.distributed.is_initialized()
