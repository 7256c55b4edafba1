"""Time grids from traces: batches, rows, bubbles, and a picture."""

import pytest
from click.testing import CliRunner

from psgd.kernels.errors import UsageError
from psgd.launch.plot import command, time_grid
from psgd.metrics.trace import chrome, passes
from psgd.metrics.trace.event_ring import KINDS, EventRing, parse
from psgd.parallel.schedules import catalog, grid
from psgd.parallel.schedules.rehearsal import rehearse


def write(path, schedule, batches=3, seconds=20.0):
    """A trace of that many batches; a rank 0 that is in no pipeline, and nothing lost."""
    rings = []
    for rank in range(schedule.ranks + 1):
        role = "server 0" if rank == 0 else f"worker {rank - 1}"
        facts = {"rank": rank, "role": role, "host": "h", "began": 100.0, "first": [100.0, 0.0, 0.0]}
        rings.append(EventRing(None, facts, capacity=1024))
    for batch in range(batches):
        for cell in rehearse(schedule):
            start, stop = (101 + seconds * batch + at for at in (cell.start, cell.stop))
            number = passes.number(cell.instruction.microbatch, cell.instruction.chunk)
            rings[cell.rank + 1].add(KINDS.index(cell.instruction.kind), start, stop, 0, number)
    rings[0].add(KINDS.index("wait"), 101, 130)
    chrome.write(path, [parse(ring.content()) for ring in rings])
    return path


@pytest.mark.parametrize("batch", [0, 2, -1, None])
def test_gpipes_grid_comes_back(tmp_path, batch):
    found = time_grid.TimeGrid(write(tmp_path / "t.json", catalog.make("gpipe", 4, 4)), batch)
    assert found.labels == [f"rank {rank + 1}: worker {rank}" for rank in range(4)]
    assert (found.batches, found.batch) == (3, {0: 0, 2: 2, -1: 2, None: 1}[batch])
    assert grid.text(found.cells, 4) == grid.text(rehearse(catalog.make("gpipe", 4, 4)), 4)
    assert found.bubble == pytest.approx(3 / 7, abs=1e-6)


def test_what_there_is_not(tmp_path):
    path = write(tmp_path / "t.json", catalog.make("1f1b", 2, 2))
    with pytest.raises(UsageError, match=r"--batch 3: expected -3 to 2, as many as .*t.json has"):
        time_grid.TimeGrid(path, 3)
    with pytest.raises(UsageError, match="expected passes of a pipeline, got none"):
        time_grid.TimeGrid(write(path, catalog.make("1f1b", 2, 2), batches=0))


def test_the_beginning_of_a_batch_that_the_ring_lost_is_left_out():
    lost = [passes.Pass(k, k + 1, "F", k, 0) for k in (1, 2, 0, 1)]
    assert [[each.microbatch for each in batch] for batch in time_grid.cut(lost)] == [[0, 1]]


def test_boxes_have_their_places_and_numbers(tmp_path):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    axis = Figure().subplots()
    time_grid.draw(axis, time_grid.TimeGrid(write(tmp_path / "t.json", catalog.make("gpipe", 2, 2)), 0), "t.json")
    assert [text.get_text() for text in axis.texts] == ["0", "1", "1", "0"] * 2
    boxes = [box.get_extents().x0 for box in axis.collections[1].get_paths()]
    assert boxes == pytest.approx([1000, 2000, 3000, 4000])
    assert axis.get_title(loc="left") == "t.json, batch 0: bubble 33.3 %"


@pytest.mark.parametrize("flags", [[], ["--batch", "1"]])
def test_the_command_draws_it_below_the_timeline(tmp_path, flags):
    pytest.importorskip("matplotlib")
    path, target = write(tmp_path / "t.json", catalog.make("zero-bubble", 3, 4)), tmp_path / "out.png"
    done = CliRunner().invoke(command.plot, [str(path), *flags, "-o", str(target)], catch_exceptions=False)
    assert "wrote" in done.output and target.read_bytes().startswith(b"\x89PNG")


def test_a_batch_of_a_log_is_refused(tmp_path):
    (tmp_path / "log").write_text("")
    with pytest.raises(UsageError, match="--batch: expected a trace, got a log"):
        CliRunner().invoke(
            command.plot, [str(tmp_path / "log"), "--batch", "0", "-o", str(tmp_path / "o.png")], catch_exceptions=False
        )
