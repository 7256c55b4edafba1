import os
import subprocess
import sys
from pathlib import Path

import pytest

import psgd
from psgd.kernels.errors import UsageError
from psgd.launch.output import picture

ROOT = str(Path(psgd.__file__).resolve().parent.parent)

pytest.importorskip("matplotlib")


def test_refused(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"--plot .*\.png"):
        picture.check("--plot", tmp_path / "a.txt")
    with pytest.raises(UsageError, match=r"-o .*: expected a file in an existing folder"):
        picture.check("-o", tmp_path / "none" / "a.png")
    monkeypatch.setattr(picture.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install matplotlib"):
        picture.check("-o", tmp_path / "a.png")


@pytest.mark.parametrize("backend", ["module://matplotlib_inline.backend_inline", "nonsense", "qtagg", ""])
def test_no_backend_of_the_environment_is_loaded(backend, tmp_path):
    code = (
        "from pathlib import Path; from psgd.launch.output import picture; figure = picture.figure(2, 1);"
        "figure.suptitle('a'); picture.save(figure, '-o', Path('a.svg'))"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "MPLBACKEND": backend, "PYTHONPATH": ROOT},
        cwd=tmp_path,
        timeout=60,
        check=True,
    )
    assert [path.name for path in tmp_path.iterdir()] == ["a.svg"]


@pytest.mark.parametrize("ending", ["png", "pdf", "svg"])
def test_any_name_is_a_label(ending, tmp_path):
    names = ["donn\udce9es", "_hidden", "a$b", "$x_{$", "\\frac{1}", "x" * 300, "\ud800", "a\nb", "{%#&~^"]
    figure = picture.figure(4, 3)
    axis = figure.subplots()
    for name in names:
        axis.plot([0, 1], label=picture.label(name))
    figure.suptitle(picture.label(names[0]))
    legend = figure.legend(handles=axis.get_lines())
    picture.save(figure, "-o", tmp_path / f"\udce9.{ending}")
    texts = [text.get_text() for text in legend.get_texts()]
    assert len(texts) == len(names) and texts[:3] == ["donn\ufffdes", " _hidden", r"a\$b"] and len(texts[5]) < 60
    assert (tmp_path / f"\udce9.{ending}").stat().st_size > 1000
