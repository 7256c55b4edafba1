"""The documentation as a site: built without a warning, so every link and every docstring in the reference is sound."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for name in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(name, reason="pip install '.[docs]'")
    out = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", out / "doctrees", ROOT / "docs", out]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=110, cwd=out)
    assert (done.returncode, done.stderr) == (0, "")
    return out


def test_it_has_every_page(site):
    pages = [path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")]
    assert len(pages) > 25 and [page for page in pages if not (site / page).is_file()] == []


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("psgd", "psgd.connect"),
        ("psgd", "psgd.connection.Connection.step"),
        ("psgd", "psgd.kernels.errors.ContractError"),
        ("collectives", "psgd.collectives.Communicator.Allreduce"),
        ("collectives", "psgd.collectives.Communicator.Iallreduce"),
        ("collectives", "psgd.collectives.Communicator.Allreduce_init"),
        ("models", "psgd.nn.layer.Layer.forward"),
        ("updates", "psgd.optim.schedules.cosine"),
    ],
)
def test_the_reference_has_the_public_names(site, page, name):
    assert f'id="{name}"' in (site / f"reference/{page}.html").read_text()
