"""Reads the source's floor plan: modules and their imports, rooms, and what breaks the plan's rules.

Each check returns complaints, none where all is well, so that a test can let it fail on a made-up tree. `Plan` takes
any root with folders like those of psgd.
"""

import ast
import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOTS = {"kernels": "psgd.kernels", "collectives": "psgd.collectives", "psgd": "psgd", "launch": "psgd.launch"}
Graph = Mapping[str, set[str]]


class Plan:
    """All modules of a source tree by full name, and what each imports, inside functions and TYPE_CHECKING too.

    Attributes:
        files: the file of each module; a package is named without `__init__`.
        imports: the modules of the tree that each module imports.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.files = root, {}
        for folder, package in ROOTS.items():
            for path in sorted((root / folder).rglob("*.py")):
                inner = path.relative_to(root / folder).with_suffix("").parts
                self.files[".".join([package, *(part for part in inner if part != "__init__")])] = path
        self.imports = {name: self._imported(name) for name in self.files}

    def _imported(self, module: str) -> set[str]:
        found: set[str] = set()
        for node in ast.walk(tree(self.files[module])):
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = [f"{node.module}.{each.name}" for each in node.names]
                found |= {each if each in self.files else node.module for each in inner}
            elif isinstance(node, ast.Import):
                found |= {each.name for each in node.names}
        return {each for each in found if each in self.files} - {module}

    def short(self, module: str) -> str:
        """The file of a module, as a reader finds it."""
        return self.files[module].relative_to(self.root).as_posix()

    def packages(self) -> list[str]:
        """Folders with an `__init__.py`."""
        return [name for name, path in self.files.items() if path.name == "__init__.py"]

    def box(self, package: str, module: str) -> str | None:
        """The part of a package that a module belongs to: a folder or file in it, `__init__`, or None outside."""
        if module == package:
            return "__init__"
        nested = [name for name in ROOTS.values() if name.startswith(f"{package}.")]
        if not module.startswith(f"{package}.") or any(f"{module}.".startswith(f"{name}.") for name in nested):
            return None
        return module.removeprefix(f"{package}.").split(".")[0]

    def boxes(self, package: str) -> Graph:
        """The parts of a package, and which others of them each imports."""
        graph: dict[str, set[str]] = defaultdict(set)
        for module in self.files:
            if (here := self.box(package, module)) is not None:
                graph[here] |= {box for each in self.imports[module] if (box := self.box(package, each))} - {here}
        return graph


def tree(path: Path) -> ast.Module:
    """A file's syntax."""
    return _parsed(path.read_text())


_parsed = functools.cache(ast.parse)


def cycle(graph: Graph) -> list[str]:
    """A cycle's members in order, the first again at the end; empty where there is none."""
    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> list[str]:
        if name in trail:
            return [*trail[trail.index(name) :], name]
        if name not in done:
            for each in sorted(graph.get(name, ())):
                if found := visit(each, [*trail, name]):
                    return found
            done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := visit(name, []))), [])


def cycles(plan: Plan) -> list[str]:
    """Modules that import each other, and parts of any one folder that do."""
    graphs = {"modules": plan.imports} | {name: plan.boxes(name) for name in plan.packages()}
    return [f"{name}: {' -> '.join(found)}" for name, graph in graphs.items() if (found := cycle(graph))]


def upward(plan: Plan, package: str, rows: Sequence[str]) -> list[str]:
    """Imports that do not go down.

    Args:
        plan: the tree.
        package: whose parts.
        rows: their order, bottom to top; names in one row may not import each other. `*` stands for the files that are
            not named: these may.
    """
    height = {name: place for place, row in enumerate(rows) for name in row.split()}
    graph, found = plan.boxes(package), []
    loose = {name for name in graph if plan.files.get(f"{package}.{name}", Path("__init__.py")).name != "__init__.py"}
    for name, others in sorted(graph.items()):
        if (here := height.get(name, height.get("*") if name in loose else None)) is None:
            found.append(f"{package}.{name}: has no place in the order of rooms")
            continue
        for each in sorted(others):
            there = height.get(each, height.get("*", -1))
            if there > here or (there == here and {name, each} & set(height)):
                found.append(f"{package}.{name} imports {each}, which is not below it")
    return found


def folders_upward(plan: Plan) -> list[str]:
    """Imports of a top folder from one above it; `ROOTS` is their order."""
    order = list(ROOTS.values())

    def folder(module: str) -> str:
        return max((p for p in order if f"{module}.".startswith(f"{p}.")), key=len)

    return [
        f"{plan.short(name)} imports {each}, upward"
        for name, others in plan.imports.items()
        for each in sorted(others)
        if order.index(folder(each)) > order.index(folder(name))
    ]


def drawing(plan: Plan, package: str) -> tuple[int, int]:
    """How many parts a package has, and how many of them import another."""
    graph = plan.boxes(package)
    return len(graph), sum(map(len, graph.values()))


def crowded(plan: Plan, most: int) -> list[str]:
    """Folders with more modules than that, `__init__` and `__main__` not counted."""
    count: dict[Path, int] = defaultdict(int)
    for path in plan.files.values():
        count[path.parent] += not path.name.startswith("__")
    return [f"{folder.relative_to(plan.root)}: {n} modules" for folder, n in count.items() if n > most]


def without_door(plan: Plan) -> list[str]:
    """Folders whose `__init__.py` is missing, or whose docstring does not say what they own and where to begin."""
    found = []
    for folder in sorted({path.parent for path in plan.files.values()}):
        door = folder / "__init__.py"
        text = (ast.get_docstring(tree(door)) or "") if door.exists() else ""
        if len(text.split()) < 8 or "egin" not in text:
            found.append(f"{folder.relative_to(plan.root)}: __init__.py says not enough of what it owns: {text!r}")
    return found


def long_files(plan: Plan, most: int) -> list[str]:
    """Files with more lines than that."""
    lengths = {path: len(path.read_text().splitlines()) for path in plan.files.values()}
    return [f"{path.relative_to(plan.root)}: {n} lines" for path, n in lengths.items() if n > most]


def classes_twice(plan: Plan) -> list[str]:
    """Classes of one name, private and nested ones included, twins for devices aside."""
    seen: dict[str, list[str]] = defaultdict(list)
    for module, path in plan.files.items():
        if not is_device(path):
            for node in ast.walk(tree(path)):
                if isinstance(node, ast.ClassDef):
                    seen[node.name].append(plan.short(module))
    return [f"class {name}: {', '.join(places)}" for name, places in sorted(seen.items()) if len(places) > 1]


def files_twice(plan: Plan, allowed: Iterable[str]) -> list[str]:
    """Files of one name, twins for devices aside."""
    seen: dict[str, list[str]] = defaultdict(list)
    for module, path in plan.files.items():
        if not is_device(path) and not path.name.startswith("__") and path.name not in set(allowed):
            seen[path.name].append(plan.short(module))
    return [f"{name}: {', '.join(places)}" for name, places in sorted(seen.items()) if len(places) > 1]


def is_device(path: Path) -> bool:
    """Whether a file does on a device what one of its name does on the host."""
    return "device" in path.parent.parts


def has_logic(path: Path) -> bool:
    """Whether a function in it does anything. Protocols, tables and plain records have none."""
    protocols = {
        function
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases)
        for function in ast.walk(node)
    }
    for node in ast.walk(tree(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node not in protocols:
            body = [each for each in node.body if not isinstance(each, ast.Pass) and not _is_text(each)]
            if body:
                return True
    return False


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def untested(plan: Plan) -> list[str]:
    """Modules with logic that no test file is named for: `tests/<folder>/test_<module>[_more].py`.

    A file belongs to the module with the longest name that fits. A twin for devices is tested beside the host's.
    """
    found = []
    folders: dict[Path, list[Path]] = defaultdict(list)
    for path in plan.files.values():
        folders[path.parent].append(path)
    for folder, paths in sorted(folders.items()):
        names = {path.stem.strip("_") for path in paths}
        tested = _tested(plan.root / "tests" / folder.relative_to(plan.root), names)
        if folder.name == "device" or folder.parent.name == "device":
            host = Path(*(part for part in folder.relative_to(plan.root).parts if part != "device"))
            tested |= _tested(plan.root / "tests" / host, names)
        for path in paths:
            if not path.name.startswith("__") and path.stem.strip("_") not in tested and has_logic(path):
                found.append(path.relative_to(plan.root).as_posix())
    return found


def _tested(folder: Path, names: set[str]) -> set[str]:
    """Which modules the test files of a folder are named for."""
    tested = set()
    for test in folder.glob("test_*.py"):
        words = test.stem.removeprefix("test_").split("_")
        fits = ["_".join(words[:n]) for n in range(len(words), 0, -1)]
        tested |= set([name for name in fits if name in names][:1])
    return tested
