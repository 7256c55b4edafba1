import numpy as np
import pytest

from psgd.kernels.errors import UsageError
from psgd.nn.layout import Layout
from psgd.nn.pytorch import linear
from psgd.training.gathered import owners, write

WHOLE = {"a": np.arange(12.0).reshape(4, 3), "b": np.arange(5.0) + 100, "c": np.arange(7.0) - 9}


ALL = Layout([(name, array.shape) for name, array in WHOLE.items()], tied={"d": "b"})


def part(rank, ranks):
    """This rank's layout: a by rows, b on the last rank alone, c on all."""
    rows = range(rank * 4 // ranks, (rank + 1) * 4 // ranks)
    shapes = [("a", (len(rows), 3)), *([("b", (5,))] if rank == ranks - 1 else []), ("c", (7,))]
    return Layout(shapes, parts={"a": ((4, 3), (rows.start, 0))}), rows


def vector(layout, rows):
    flat = np.zeros(layout.size)
    for name, view in layout.views(flat).items():
        view[...] = WHOLE[name][rows.start : rows.stop] if name == "a" else WHOLE[name]
    return flat


def test_each_part_has_one_owner():
    layouts = [part(rank, 3)[0] for rank in range(3)]
    found = {name: [rank for rank, _ in parts] for name, parts in owners(layouts).items()}
    assert found == {"a": [0, 1, 2], "c": [0], "b": [2]}


@pytest.mark.ranks(1, 2, 3)
def test_a_file_has_whole_parameters(comm, tmp_path):
    layout, rows = part(comm.rank, comm.size)
    write(tmp_path / "w.npz", vector(layout, rows), layout, ALL, comm, "--save")
    if comm.rank == 0:
        with np.load(tmp_path / "w.npz") as found:
            assert list(found) == [*WHOLE, "d"]
            for name, whole in {**WHOLE, "d": WHOLE["b"]}.items():
                assert np.array_equal(found[name], whole)


@pytest.mark.ranks(2)
def test_a_file_for_pytorch_has_its_layers_form(comm, tmp_path):
    torch = pytest.importorskip("torch")
    layout, rows = part(comm.rank, comm.size)
    of_torch = Layout([(p.name, p.shape) for p in ALL.parameters], tied={"d": "b"}, torch={"a": linear(4, 3)})
    write(tmp_path / "w.pt", vector(layout, rows), layout, of_torch, comm, "--save")
    if comm.rank == 0:
        state = torch.load(tmp_path / "w.pt")
        assert list(state) == [*WHOLE, "d"]
        for name, whole in {**WHOLE, "a": WHOLE["a"].T, "d": WHOLE["b"]}.items():
            assert np.array_equal(state[name].numpy(), whole), name


@pytest.mark.ranks(3)
def test_where_it_cannot_be_written_no_rank_waits(comm, tmp_path):
    layout, rows = part(comm.rank, comm.size)
    arguments = (tmp_path / "nowhere" / "w.npz", vector(layout, rows), layout, ALL, comm, "--save")
    if comm.rank == 0:
        with pytest.raises(UsageError, match=r"--save .*cannot be written"):
            write(*arguments)
    else:
        write(*arguments)
    comm.Barrier()
