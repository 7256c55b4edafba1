"""Sharded modules that are saved and resumed: at other stages, without sharding, and on other numbers of ranks."""

import pytest

torch = pytest.importorskip("torch")
from harness import torch_sharded as cases  # noqa: E402

HALF, END = 4, 8


def same(got, wanted):
    assert got.losses == wanted.losses
    assert list(got.state) == list(wanted.state)
    for name, value in wanted.state.items():
        assert torch.equal(got.state[name], value), name


def saved(comm, kind, stage, path, **options):
    ran = cases.run(comm, kind, stage, HALF, checkpoint_dir=path, checkpoint_every=HALF, **options)
    if stage:
        ran.model.close()
    comm.Barrier()  # rank 0 has published it


def resumed(comm, kind, stage, path, **options):
    ran = cases.run(comm, kind, stage, END, first=HALF, checkpoint_dir=path, resume=True, **options)
    if stage:
        ran.model.close()
    return ran


@pytest.mark.ranks(3, timeout=240)
@pytest.mark.parametrize("kind", ["resnet", "encoder"])
def test_they_go_on_with_the_bits_of_all_reduce(comm, kind, tmp_path):
    whole = cases.run(comm, kind, 0, END)
    whole.losses = whole.losses[HALF:]
    for before, after in ((3, 3), (3, 0), (0, 3), (2, 1), (1, 2)):
        path = tmp_path / f"{before}{after}"
        saved(comm, kind, before, path)
        same(resumed(comm, kind, after, path), whole)
    few = comm.Split(comm.rank == 2, comm.rank)
    saved(comm, kind, 0, tmp_path / "0")
    saved(comm, kind, 3, tmp_path / "3")
    if comm.rank < 2:
        same(resumed(few, kind, 3, tmp_path / "3"), resumed(few, kind, 0, tmp_path / "0"))
    comm.Barrier()
    few.Free()
