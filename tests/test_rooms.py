"""The floor plan of the four folders: order of rooms, no cycles, small folders with a door, one name once, a test each.

`harness.rooms` has the checks. Each is tried on a made-up tree too, in which it must fail.
"""

from pathlib import Path

import pytest
from harness import ROOT, rooms
from harness.rooms import Plan

ORDER = {
    "psgd.kernels": (
        "errors cache",
        "jit",
        "array by_device memory",
        "*",
        "layers codecs",
        "device",
        "__init__",
    ),
    "psgd.collectives": (
        "mpi",
        "shm",
        "arguments",
        "algorithms",
        "device",
        "peers",
        "dispatch",
        "fastpath",
        "*",
        "__init__",
    ),
    "psgd": (
        "runtime user",
        "metrics",
        "data",
        "nn",
        "checkpoint",
        "optim",
        "compression",
        "backend",
        "parallel",
        "server",
        "worker",
        "strategies",
        "config",
        "teardown",
        "connection estimate",
        "connector",
        "torch jax",
        "training",
        "__init__",
    ),
    "psgd.launch": ("output usage memory", "*", "plot", "view", "slurm", "doctor", "bench", "__main__ __init__"),
}
"""Bottom to top. Names in a row do not import each other; `*` is every file of that folder that is not named."""
MOST_MODULES, MOST_LINES, MOST_BOXES, MOST_ARROWS = 15, 400, 22, 101
"""Boxes and arrows: the 20 and 85 that fit a page at ease, `parallel`, on which `torch` builds too, and `estimate`."""
NAMES_TWICE = {
    "command.py": "each command of `psgd` that is a folder begins in the file of that name",
    "measure.py": "and so do the parts of a benchmark: what it measures,",
    "picture.py": "what it draws,",
    "table.py": "what it prints,",
    "ranks.py": "and what its ranks run; a trace's, drawn",
    "interface.py": "a room's protocol",
    "errors.py": "kernels' are everybody's; those of collectives are their texts",
    "agreement.py": "one text on all ranks: of mpi's room, and psgd's signature on top",
    "context.py": "what a layer, a worker or a server is handed",
    "layout.py": "of parameters in a vector, and of slots in shared memory",
    "log.py": "the server's, and the reader of a run's",
    "options.py": "of the command, of connect, of compression, and of checkpoints",
    "catalog.py": "a room's things by name",
    "cores.py": "of ranks that the launcher binds, and of a benchmark's peers",
    "on_gpu.py": "the part of its folder that runs on a GPU",
    "job.py": "of the doctor, and of a benchmark",
}


@pytest.fixture(scope="module")
def plan():
    return Plan(ROOT)


@pytest.mark.parametrize("package", ORDER)
def test_rooms_import_only_rooms_below_them(plan, package):
    assert rooms.upward(plan, package, ORDER[package]) == []


def test_the_four_folders_import_only_those_below_them(plan):
    assert rooms.folders_upward(plan) == []


def test_neither_modules_nor_parts_of_a_folder_import_each_other(plan):
    assert rooms.cycles(plan) == []


def test_a_drawing_of_psgd_fits_a_page(plan):
    boxes, arrows = rooms.drawing(plan, "psgd")
    assert boxes <= MOST_BOXES and arrows <= MOST_ARROWS, (boxes, arrows)


def test_folders_and_files_are_small(plan):
    assert rooms.crowded(plan, MOST_MODULES) + rooms.long_files(plan, MOST_LINES) == []


def test_each_folder_says_what_it_owns(plan):
    assert rooms.without_door(plan) == []


def test_one_name_once(plan):
    assert rooms.classes_twice(plan) + rooms.files_twice(plan, NAMES_TWICE) == []


def test_no_reason_is_given_in_vain(plan):
    assert sorted(NAMES_TWICE) == [each.partition(":")[0] for each in rooms.files_twice(plan, [])]


def test_each_module_has_a_test_of_its_name(plan):
    assert rooms.untested(plan) == []


DOOR = '"""What this folder owns, in words enough for a reader: begin with `that` file of it."""\n'


@pytest.fixture
def made(tmp_path):
    """Makes a small tree that keeps all rules but for the files given here; returns its plan."""

    def make(**files: str) -> Plan:
        usual = {
            "psgd/__init__": DOOR,
            "psgd/low/__init__": DOOR,
            "psgd/low/base": "def one():\n    return 1\n",
            "psgd/high/__init__": DOOR,
            "psgd/high/user": "from psgd.low.base import one\n\n\nclass User:\n    two = one\n",
            "psgd/top": "from psgd.high import user\nimport psgd.low.base\n",
            "kernels/__init__": DOOR,
            "launch/__init__": DOOR,
            "tests/psgd/low/test_base": "",
        }
        for name, text in {**usual, **{key.replace("__", "/", 1): text for key, text in files.items()}}.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return Plan(tmp_path)

    return make


ROWS = ("low", "high", "*", "__init__")


def complaints(plan: Plan) -> list[str]:
    """All checks, with bounds that the small tree just keeps."""
    return [
        *rooms.upward(plan, "psgd", ROWS),
        *rooms.folders_upward(plan),
        *rooms.cycles(plan),
        *rooms.crowded(plan, 1),
        *rooms.long_files(plan, 5),
        *rooms.without_door(plan),
        *rooms.classes_twice(plan),
        *rooms.files_twice(plan, ["allowed.py"]),
        *rooms.untested(plan),
    ]


def test_a_tree_that_keeps_the_rules_passes(made):
    plan = made()
    assert complaints(plan) == []
    assert rooms.drawing(plan, "psgd") == (4, 3)


UP = "import psgd.high.user\n"


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"low/base": "from psgd import launch"}, "psgd/low/base.py imports psgd.launch, upward"),
        ({"low/__init__": DOOR + UP}, "psgd.low imports high, which is not below it"),
        ({"low/__init__": f"{DOOR}def f():\n    {UP}"}, "psgd.low imports high, which is not below it"),
        ({"low/__init__": f"{DOOR}if TYPE_CHECKING:\n    {UP}"}, "psgd.low imports high, which is not below it"),
        ({"low/__init__": f"{DOOR}from psgd.high import user"}, "psgd: high -> low -> high"),
        ({"low/base": UP}, "modules: psgd.high.user -> psgd.low.base -> psgd.high.user"),
        ({"attic/__init__": DOOR}, "psgd.attic: has no place in the order of rooms"),
        ({"low/more": ""}, "psgd/low: 2 modules"),
        ({"high/user": "#\n" * 6}, "psgd/high/user.py: 6 lines"),
        ({"bare/code": ""}, "psgd/bare: __init__.py says not enough"),
        ({"low/__init__": '"""Things."""'}, "psgd/low: __init__.py says not enough"),
        ({"low/base": "def f():\n    class User: ..."}, "class User: psgd/high/user.py, psgd/low/base.py"),
        ({"high/base": ""}, "base.py: psgd/high/base.py, psgd/low/base.py"),
        ({"high/user": "def f():\n    return 2"}, "psgd/high/user.py"),
        ({"high/user": "class A:\n    @property\n    def f(self):\n        return 2"}, "psgd/high/user.py"),
    ],
)
def test_each_rule_can_fail(made, files, wanted):
    plan = made(**{f"psgd__{name}": text for name, text in files.items()})
    assert any(each.startswith(wanted) for each in complaints(plan)), complaints(plan)


def test_a_row_is_without_imports_and_the_star_with(made):
    plan = made()
    assert rooms.upward(plan, "psgd", ("low high", "*", "__init__")) == ["psgd.high imports low, which is not below it"]
    plan = made(psgd__more="import psgd.top")
    assert rooms.upward(plan, "psgd", ROWS) == []
    assert rooms.cycles(made(psgd__more="import psgd.top", psgd__top="import psgd.more")) == [
        "modules: psgd.more -> psgd.top -> psgd.more",
        "psgd: more -> top -> more",
    ]


def test_twins_for_devices_and_reasoned_names_may_come_twice(made):
    text = "class Twin: ...\n"
    twins = {"kernels__add": text, "kernels__device/add": text, "kernels__device/__init__": DOOR}
    assert not any("Twin" in each or "add.py" in each for each in complaints(made(**twins)))
    plan = made(psgd__low__allowed="", psgd__allowed="")
    assert not any(each.startswith("allowed.py") for each in complaints(plan))


def test_a_test_belongs_to_the_longest_name_that_fits(made):
    logic = "def f():\n    return 1\n"
    files = {"psgd__low/base_more": logic, "tests__psgd/low/test_base_more_cases": ""}
    plan = made(**files)
    assert rooms.untested(plan) == []
    Path(plan.root / "tests/psgd/low/test_base.py").unlink()
    assert rooms.untested(plan) == ["psgd/low/base.py"]


@pytest.mark.parametrize(
    "text",
    [
        "TABLE = {1: 2}\n",
        "class P(Protocol):\n    def f(self):\n        '''Says.'''\n        return 1\n",
        "class P(Protocol[T]):\n    def f(self): ...\n",
        "@dataclass\nclass R:\n    x: int\n",
        "def f():\n    '''Nothing.'''\n",
    ],
)
def test_tables_protocols_and_records_need_no_test(made, text):
    assert rooms.untested(made(psgd__high__x=text)) == []
