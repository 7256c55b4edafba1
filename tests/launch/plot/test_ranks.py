"""Traces as timelines: shares of each kind on each rank, and a picture."""

import pytest
from click.testing import CliRunner

from psgd.kernels.errors import DataError, UsageError
from psgd.launch.plot import command, ranks
from psgd.metrics.trace import chrome
from psgd.metrics.trace.event_ring import KINDS, EventRing, parse

SPANS = [("compute", 1, 5), ("gradient", 2, 4), ("step", 5, 9), ("push", 5, 6), ("wait", 6, 8), ("pull", 8, 9)]


def write(path, spans=SPANS, count=2):
    rings = []
    for rank in range(count):
        facts = {"rank": rank, "role": f"worker {rank}", "host": "h", "began": 100.0, "first": [100.0, 0.0, 0.0]}
        rings.append(EventRing(None, facts, capacity=64))
        for kind, start, stop in spans:
            rings[-1].add(KINDS.index(kind), 100.0 + start, 100.0 + stop)
    chrome.write(path, [parse(ring.content()) for ring in rings])
    return path


def test_what_each_rank_did_since_the_first_event(tmp_path):
    found = ranks.Ranks(write(tmp_path / "run.json.gz"))
    assert found.labels == ["rank 0: worker 0", "rank 1: worker 1"]
    assert found.seconds == pytest.approx(8)
    assert {kind: [pytest.approx(each) for each in spans] for kind, spans in found.spans[1].items()} == {
        "compute": [(0, 1), (3, 4)], "gradient": [(1, 3)], "push": [(4, 5)], "wait": [(5, 7)], "pull": [(7, 8)],
    }  # fmt: skip


def test_each_kind_has_its_share_of_the_row(tmp_path):
    pytest.importorskip("matplotlib")
    from matplotlib.colors import to_hex
    from matplotlib.figure import Figure

    axis = Figure().subplots()
    ranks.draw(axis, ranks.Ranks(write(tmp_path / "run.json", [*SPANS, ("write", 9, 17)], count=1)))
    areas = {}
    for patch in axis.patches:
        values, edges, baseline = patch.get_data()
        areas[to_hex(patch.get_facecolor())] = float(((baseline - values) * (edges[1:] - edges[:-1])).sum()) / 0.8
    expected = {"compute": 2, "gradient": 2, "push": 1, "wait": 2, "pull": 1}
    assert areas == pytest.approx({ranks.COLORS[kind]: s for kind, s in expected.items()} | {ranks.OTHERS: 8}, rel=1e-6)
    names = [text.get_text() for text in axis.get_legend().get_texts()]
    assert names == ["compute", "gradient", "push", "wait", "pull", "other"]


@pytest.mark.parametrize("flags", [[], ["--window", "1:2"]])
def test_a_picture_of_two_traces(tmp_path, flags):
    pytest.importorskip("matplotlib")
    logs = [str(write(tmp_path / name)) for name in ("a.json", "b.json.gz")]
    target = tmp_path / "out.png"
    done = CliRunner().invoke(command.plot, [*logs, *flags, "-o", str(target)], catch_exceptions=False)
    assert done.output == f"wrote {target}\n"
    assert target.read_bytes().startswith(b"\x89PNG") and target.stat().st_size > 5000


def test_traces_and_logs_together_are_refused_and_so_is_one_without_events(tmp_path):
    pytest.importorskip("matplotlib")
    path, log = write(tmp_path / "run.json"), tmp_path / "log.jsonl"
    log.write_text('{"event": "start"}\n')
    with pytest.raises(UsageError, match="expected logs or traces, not both"):
        CliRunner().invoke(command.plot, [str(path), str(log), "-o", str(tmp_path / "a.png")], catch_exceptions=False)
    with pytest.raises(DataError, match="no event in it"):
        ranks.Ranks(write(tmp_path / "empty.json", []))
