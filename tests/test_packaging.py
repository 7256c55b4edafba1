"""The wheel holds the four folders and nothing else, and runs outside the checkout."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "psgd": "psgd",
    "collectives": "psgd/collectives",
    "kernels": "psgd/kernels",
    "launch": "psgd/launch",
}


def run(words, cwd, **env):
    return subprocess.run(
        words,
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def sources():
    """What the wheel must hold besides its metadata, from the folders as they are."""
    found = set()
    for folder, nested in FOLDERS.items():
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                found.add(f"{nested}/{path.relative_to(ROOT / folder).as_posix()}")
    return found


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """Built from a copy, so that the checkout stays clean."""
    pytest.importorskip("build")
    tree = tmp_path_factory.mktemp("tree")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    card = (ROOT / "CITATION.cff").read_text()
    (tree / "CITATION.cff").write_text(f'{card}repository-code: "https://example.org/psgd"\n')
    (tree / "tests").mkdir()
    (tree / "tests" / "test_nothing.py").write_text("")
    out = tmp_path_factory.mktemp("wheel")
    done = run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)], tree)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def site(wheel, tmp_path_factory):
    """The wheel, installed in a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    done = run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--no-deps",
            "--no-index",
            "--target",
            str(folder),
            str(wheel),
        ],
        folder,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_wheel_holds_every_file_and_nothing_else(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    metadata = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    assert names - metadata == sources()
    assert {name.split("/")[0] for name in names - metadata} == {"psgd"}
    for kind in ("LICENSE", "METADATA", "entry_points.txt"):
        assert any(name.endswith(kind) for name in metadata)


def test_the_typed_marks_and_the_data_are_there(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for nested in FOLDERS.values():
        assert f"{nested}/py.typed" in names
    assert any(name.startswith("psgd/data/files/digits") for name in names)


def test_the_installed_command_runs_outside_the_checkout(site, tmp_path):
    done = run([sys.executable, str(site / "bin" / "psgd"), "--help"], tmp_path, PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    assert "train" in done.stdout
    told = run([sys.executable, str(site / "bin" / "psgd"), "--version"], tmp_path, PYTHONPATH=str(site))
    assert told.stdout.startswith("psgd 0.")
    assert "checkout" not in told.stdout


PROBE = """
import pkgutil, psgd, psgd.collectives, psgd.kernels, psgd.launch
for module in (psgd, psgd.collectives, psgd.kernels, psgd.launch):
    print(module.__file__)
print(*sorted(info.name for info in pkgutil.walk_packages(psgd.__path__, "psgd.")))
"""


def test_all_four_import_from_the_wheel(site, tmp_path):
    done = run([sys.executable, "-c", PROBE], tmp_path, PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    *paths, walked = done.stdout.splitlines()
    assert len(paths) == 4
    assert all(Path(path).is_relative_to(site) for path in paths)
    modules = {name.removesuffix(".py").removesuffix("/__init__") for name in sources() if name.endswith(".py")}
    assert set(walked.split()) == {name.replace("/", ".") for name in modules} - {"psgd"}


def test_a_dataset_opens_from_the_wheel(site, tmp_path):
    probe = "from psgd.data import load; print(load('digits').train.samples)"
    done = run([sys.executable, "-c", probe], tmp_path, PYTHONPATH=str(site))
    assert done.stdout.strip() == "1497", done.stderr


@pytest.mark.parametrize("name", ["setup", "psgd", "tests", "slurm", "kernels.psgd", "launch.collectives"])
def test_a_checkout_makes_nothing_else_importable(name, tmp_path):
    probe = f"import importlib.util as u; print(u.find_spec('psgd.{name}'))"
    done = run([sys.executable, "-c", probe], tmp_path, PYTHONPATH=str(ROOT))
    assert done.stdout.strip() == "None", done.stderr


def test_walking_a_checkout_ends(tmp_path):
    done = run([sys.executable, "-c", PROBE], tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    walked = done.stdout.splitlines()[-1].split()
    assert "psgd.config" in walked
    assert not [name for name in walked if "psgd.psgd" in name or name.endswith(".setup")]
    assert len(walked) == len(set(walked))


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_of_code_is_a_package(folder):
    for path in (ROOT / folder).rglob("*.py"):
        assert (path.parent / "__init__.py").is_file(), f"{path.parent} would be left out of the wheel"


def test_its_pages_are_where_the_citation_says(wheel):
    with zipfile.ZipFile(wheel) as built:
        (name,) = (each for each in built.namelist() if each.endswith(".dist-info/METADATA"))
        lines = built.read(name).decode().splitlines()
    assert "Project-URL: Source, https://example.org/psgd" in lines
    assert "Project-URL: Changelog, https://example.org/psgd/blob/main/CHANGELOG.md" in lines
