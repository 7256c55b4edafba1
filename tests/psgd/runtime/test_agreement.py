import pytest

from psgd.kernels.errors import ContractError, UsageError
from psgd.runtime.agreement import agree, broadcast, gather


@pytest.mark.ranks(1, 2, 5)
def test_gather_and_broadcast(comm):
    values = gather(comm, {"rank": comm.rank, "text": "é" * comm.rank})
    assert values == [{"rank": rank, "text": "é" * rank} for rank in range(comm.size)]
    assert broadcast(comm, {"from": comm.rank, "list": [1.5, None]}) == {"from": 0, "list": [1.5, None]}


@pytest.mark.ranks(4)
def test_the_same_passes_and_a_difference_names_ranks_and_both_sides(comm):
    agree(comm, "call", {"n": 3, "name": "x"})
    with pytest.raises(ContractError) as caught:
        agree(comm, "call", {"n": 3, "name": "y" if comm.rank == 2 else "x"})
    assert str(caught.value) == 'call: all ranks must pass the same name, got "x" on rank(s) 0, 1, 3; "y" on rank(s) 2'


@pytest.mark.ranks(3)
def test_a_complaint_of_one_rank_is_raised_on_all(comm):
    with pytest.raises(UsageError, match="call on rank 1: n: expected more"):
        agree(comm, "call", {"n": comm.rank}, "n: expected more" if comm.rank == 1 else None)
