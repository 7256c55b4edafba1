"""Buffers and frozen parameters: the first worker's in the beginning, what the mode says in the end."""

import pytest

torch = pytest.importorskip("torch")
from psgd.torch import kept_buffers  # noqa: E402
from psgd.torch.kept_buffers import KeptBuffers  # noqa: E402


def module(value):
    norm = torch.nn.BatchNorm1d(2)
    norm.running_mean.fill_(value)
    norm.weight.requires_grad_(False).data.fill_(value)
    return torch.nn.Sequential(norm)


def wait(request):
    request.Wait()


@pytest.mark.ranks(2, timeout=60)
def test_all_start_alike_and_end_by_the_mode(comm):
    for mode, means in (("average", [5.5, 5.5]), ("broadcast", [4.5, 4.5]), ("local", [4.5, 6.5])):
        one = module(float(comm.rank + 1))
        kept = KeptBuffers(one, mode)
        assert mode in kept.signature and [name for name, _ in kept.frozen] == ["0.weight"]
        kept.begin(comm, wait, {})
        assert one[0].running_mean.eq(1).all() and one[0].weight.eq(1).all()
        one[0].running_mean += 3.5 + 2 * comm.rank
        saved = kept.kept()
        kept.end(comm, wait, 0, 3)
        assert one[0].running_mean.eq(means[comm.rank]).all(), mode
        kept.begin(comm, wait, saved)
        assert one[0].running_mean.eq(4.5 + 2 * comm.rank).all(), "each worker's own of the checkpoint"
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_buffers, "say", said.append)
        kept.end(comm, wait, 0, 3)
        assert said == []
        kept.end(comm, wait, 0, 0)
    assert [text[:37] for text in said] == ["warning: the first worker took no ste"] * (comm.rank == 0)


def test_a_module_without_buffers_keeps_nothing():
    assert KeptBuffers(torch.nn.Linear(2, 2), "average").kept() == {}


def test_what_was_kept_is_put_back():
    one = module(1.0)
    kept = KeptBuffers(one, "average")
    saved = kept.kept()
    one[0].running_mean += 3
    kept.put_back({})
    assert one[0].running_mean.eq(4).all()
    kept.put_back(saved)
    assert one[0].running_mean.eq(1).all()
