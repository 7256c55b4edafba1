"""Communicators that stand for a process group, and others."""

import pytest
from harness.ddp import process_group

import psgd
from psgd import collectives
from psgd.kernels.errors import AgreedUsageError, UsageError

torch = pytest.importorskip("torch")
nn = torch.nn


@pytest.mark.ranks(3)
def test_other_ranks_than_the_process_group_are_refused_by_all(comm, tmp_path):
    turned = (comm.rank + 1) % 3
    with process_group(comm, tmp_path, rank=turned), collectives.Communicator(comm) as ours:
        model = nn.parallel.DistributedDataParallel(nn.Linear(3, 3))
        model.register_comm_hook(ours, psgd.torch.allreduce_hook)
        with pytest.raises(AgreedUsageError, match=r"got ranks \[1, 2, 0\] of size 3: init_process_group") as caught:
            model(torch.ones(2, 3)).sum().backward()
        assert "\n" not in str(caught.value)


@pytest.mark.ranks(3)
def test_a_process_group_of_some_ranks(comm, tmp_path):
    with process_group(comm, tmp_path):
        pairs = [torch.distributed.new_group(ranks) for ranks in ([0, 1], [2])]
        half = comm.Split(comm.rank == 2)
        with collectives.Communicator(half) as ours, collectives.Communicator(comm) as every:
            for state, fits in ((every, False), (ours, True)):
                module = nn.Linear(3, 1, bias=False)
                group = pairs[comm.rank == 2]
                model = nn.parallel.DistributedDataParallel(module, process_group=group)
                model.register_comm_hook((state, group), psgd.torch.allreduce_hook)
                loss = model(torch.full((1, 3), float(comm.rank))).sum()
                if fits:
                    loss.backward()
                    assert module.weight.grad.tolist() == [[0.5, 0.5, 0.5] if comm.rank < 2 else [2.0, 2.0, 2.0]]
                else:
                    with pytest.raises(AgreedUsageError, match=r"got ranks \[0, 1, 0\] of size 1, 2"):
                        loss.backward()


@pytest.mark.ranks(1)
def test_another_state_is_refused(comm, tmp_path):
    with process_group(comm, tmp_path):
        model = nn.parallel.DistributedDataParallel(nn.Linear(3, 3))
        model.register_comm_hook(comm, psgd.torch.allreduce_hook)
        with pytest.raises(UsageError, match=r"expected a psgd.collectives.Communicator as a hook's state, got Intra"):
            model(torch.ones(2, 3)).sum().backward()


@pytest.mark.ranks(2)
def test_the_process_groups_are_compared_once_and_again_where_there_is_another(comm, tmp_path):
    from psgd.torch.group_match import matched

    with collectives.Communicator(comm) as ours:
        gathers, gather = [], ours.Allgather
        ours.Allgather = lambda *buffers: (gathers.append(1), gather(*buffers))
        for number in range(2):
            with process_group(comm, tmp_path, name=f"meet{number}"):
                assert matched(ours) is matched(ours) is matched((ours, torch.distributed.group.WORLD)) is ours
            assert len(gathers) == number + 1
