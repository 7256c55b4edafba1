"""docs/rooms.svg shows the imports as they are: found here anew, without the script that draws it."""

import ast
import functools
import importlib.util
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "rooms.svg"
FOLDERS = ("launch", "psgd", "collectives", "kernels")


@pytest.fixture(scope="module")
def rooms():
    spec = importlib.util.spec_from_file_location("rooms", ROOT / "docs" / "rooms.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def picture():
    """Boxes, folders, and the arrows of each kind with their ends' heights."""
    root = ElementTree.fromstring(PICTURE.read_text())
    elements = [(element.get("class"), element) for element in root.iter()]
    boxes = {e.get("data-box") for kind, e in elements if kind == "box"}
    folders = {e.get("data-folder") for kind, e in elements if kind == "folder"} - {None}
    arrows = {
        kind: {(e.get("data-from"), e.get("data-to")): heights(e.get("d")) for k, e in elements if k == kind}
        for kind in ("arrow", "outer")
    }
    return boxes, folders, arrows


def heights(path):
    """Where a path begins and ends, from the top."""
    first = re.match(r"M[\d.-]+,([\d.-]+)", path)[1]
    return float(first), float(re.search(r"([\d.-]+)$", path)[1])


def name_of(path):
    folder, *inner = path.relative_to(ROOT).with_suffix("").parts
    names = ["psgd"] if folder == "psgd" else ["psgd", folder]
    return ".".join([*names, *(part for part in inner if part != "__init__")])


@functools.cache
def imports():
    """Each module of the four folders by name, and those that it imports."""
    paths = {name_of(path): path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    graph = {}
    for name, path in paths.items():
        graph[name] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                graph[name] |= {f"{node.module}.{alias.name}" for alias in node.names} & paths.keys()
                graph[name] |= {node.module} & paths.keys()
            elif isinstance(node, ast.Import):
                graph[name] |= {alias.name for alias in node.names} & paths.keys()
    return graph


def place(name):
    """A module's folder and the first part of its name within, as in `psgd.server`; the folder alone for its door."""
    first, *inner = name.split(".")
    return ".".join((inner if inner and inner[0] in FOLDERS else [first, *inner])[:2])


def closure(arrows):
    found = set(arrows)
    while True:
        more = {(a, d) for a, b in found for c, d in found if b == c} - found
        if not more:
            return found
        found |= more


def test_it_is_what_the_script_draws(rooms):
    assert PICTURE.read_text() == rooms.svg(), "the imports have changed: run python docs/rooms.py"


def test_each_folder_and_module_has_a_box(picture):
    boxes, folders, _ = picture
    assert folders == set(FOLDERS)
    expected = {place(name) for name in imports()} - set(FOLDERS)
    shared = {box for box in boxes if "*" in box}
    alone = boxes - shared
    assert alone <= expected
    assert all(not (ROOT / each.replace(".", "/")).is_dir() for each in expected - alone)
    assert {each.split(".")[0] for each in expected - alone} == {box.split(".")[0] for box in shared}


@pytest.mark.parametrize("folder", ["psgd", "collectives"])
def test_the_arrows_are_the_imports(picture, folder):
    boxes, _, arrows = picture
    shown = {ends for ends in arrows["arrow"] if ends[0].startswith(f"{folder}.")}
    real = {(place(a), place(b)) for a, others in imports().items() for b in others if place(a) != place(b)}
    real = {ends for ends in real if set(ends) <= boxes and all(each.startswith(f"{folder}.") for each in ends)}
    assert closure(shown) == closure(real) and len(shown) > 5
    assert not any(ends in closure(shown - {ends}) for ends in shown), "an arrow follows from others"


def test_boxes_that_share_modules_have_their_arrows(rooms, picture):
    _, graphs = rooms.graphs()
    for folder in ("launch", "kernels"):
        shown = {ends for ends in picture[2]["arrow"] if ends[0].startswith(f"{folder}.")}
        real = {(place(a), place(b)) for a, others in imports().items() for b in others if place(a) != place(b)}
        whole = {(a, b) for a, others in graphs[folder].items() for b in others}
        assert closure(shown) == closure(whole)
        between = {(a, b) for a, b in real if a in graphs[folder] and b in graphs[folder]}
        assert between <= whole


def test_the_four_folders(picture):
    shown = picture[2]["outer"]
    real = {(place(a).split(".")[0], place(b).split(".")[0]) for a, others in imports().items() for b in others}
    assert closure(shown) == closure({(a, b) for a, b in real if a != b})


def test_all_arrows_point_downward(picture):
    arrows = picture[2]
    assert all(start < end for kind in arrows.values() for start, end in kind.values())


def test_a_cycle_is_refused(rooms):
    with pytest.raises(ValueError, match="cycle"):
        rooms.rows({"a": {"b"}, "b": {"a"}, "c": set()})


def test_reduction_and_rows(rooms):
    graph = {"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}, "d": set(), "e": {"d"}, "f": set(), "a2": {"f"}}
    assert rooms.reduced(graph) == graph | {"a": {"b"}}
    assert rooms.rows(graph) == {"a": 3, "b": 2, "c": 1, "d": 0, "e": 1, "f": 0, "a2": 1}
