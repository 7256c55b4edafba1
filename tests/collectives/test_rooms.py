"""The rooms of `collectives/`: each imports only rooms below it, and no two modules import each other."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2] / "collectives"
ROOMS = ("mpi", "shm", "arguments", "algorithms", "device", "dispatch", "fastpath", "")
"""Bottom to top; "" is the face."""
AT_MOST = 15


def modules():
    """Every module by name, relative to the package, and what it imports of it, inside functions too."""
    files = {path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."): path for path in ROOT.rglob("*.py")}
    names = {name.removesuffix(".__init__").removesuffix("__init__"): path for name, path in files.items()}
    return {name: imports(path, names) for name, path in names.items()}


def imports(path, names):
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("psgd.collectives"):
            base = node.module.removeprefix("psgd.collectives").removeprefix(".")
            inner = [f"{base}.{each.name}".removeprefix(".") for each in node.names]
            found |= {each if each in names else base for each in inner}
        elif isinstance(node, ast.Import):
            found |= {e.name.removeprefix("psgd.collectives.") for e in node.names if "psgd.collectives." in e.name}
    return found


def room(name):
    return name.split(".")[0] if name.split(".")[0] in ROOMS else ""


def test_no_room_imports_one_above():
    upward = [
        f"{name} imports {each}"
        for name, others in modules().items()
        for each in others
        if name and ROOMS.index(room(each)) > ROOMS.index(room(name))
    ]
    assert not upward


def test_no_cycle():
    graph, done = modules(), set()

    def visit(name, trail):
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for each in sorted(graph.get(name, ())):
                visit(each, [*trail, name])
            done.add(name)

    for name in graph:
        visit(name, [])


def test_rooms_are_small_and_have_a_door():
    for folder in ROOMS:
        files = sorted(path.name for path in (ROOT / folder).glob("*.py"))
        assert "__init__.py" in files and len(files) <= AT_MOST + 1, (folder, files)
        assert ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text()))


def test_one_class_name_once():
    seen = {}
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                assert node.name not in seen, (node.name, path, seen[node.name])
                seen[node.name] = path
