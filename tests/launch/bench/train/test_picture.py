import pytest

from psgd.kernels.errors import UsageError
from psgd.launch.bench.peers.torch_options import TorchOptions
from psgd.launch.bench.train.picture import draw

OPTIONS = TorchOptions("", "digits", "mlp", 3, 64, 0.1, 0, 2, inject="slow:1:4")


@pytest.fixture(autouse=True)
def matplotlib():
    pytest.importorskip("matplotlib")


def row(name, seconds=None, interval=0.01):
    return {
        "name": name,
        "samples_per_second": 1e5,
        "test_accuracy": 0.875,
        "test_accuracy_interval": interval,
        "seconds_to_accuracy": seconds,
    }


@pytest.fixture
def figures(monkeypatch):
    from matplotlib.figure import Figure

    kept = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *arguments, **options: kept.append(figure))
    return kept


def test_a_panel_for_each_quantity(figures, tmp_path):
    rows = [row("single", 2.5), row("torch"), row("sync", 1.5, None)]
    draw(rows, OPTIONS, 0.87, tmp_path / "a.png")
    draw(rows, OPTIONS, 0.0, tmp_path / "a.png")
    timed, plain = figures
    assert [len(figure.axes) for figure in figures] == [3, 2]
    assert [label.get_text() for label in plain.axes[0].get_yticklabels()] == ["single", "torch", "sync"]
    assert [bar.get_width() for bar in timed.axes[2].patches] == [2.5, 0.0, 1.5]
    assert [text.get_text() for text in timed.axes[2].texts] == ["2.5", "not reached", "1.5"]
    ours, theirs, again = [bar.get_facecolor() for bar in timed.axes[0].patches]
    assert ours == again != theirs


def test_a_file_is_written(tmp_path):
    draw([row("single", 1.0)], OPTIONS, 0.9, tmp_path / "a.svg")
    assert "seconds to 90 %" in (tmp_path / "a.svg").read_text() or (tmp_path / "a.svg").stat().st_size > 1000
    with pytest.raises(UsageError, match="cannot be written"):
        draw([row("single")], OPTIONS, 0.0, tmp_path / "no" / "a.svg")
