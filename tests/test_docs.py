"""What the documentation names exists: files, modules, options, arguments, links; and its lines are short."""

import ast
import functools
import importlib
import inspect
import re
import shlex
from pathlib import Path

import click
import pytest

from psgd.kernels.errors import UsageError

ROOT = Path(__file__).resolve().parent.parent
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
PAGES = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md"))]
LONGEST = 120
ELSEWHERE = {
    *("--oversubscribe", "--allow-run-as-root", "--with-ft", "--mca", "--map-by", "--bind-to"),  # mpirun
    *("--mpi", "--nodes", "--ntasks", "--cpus-per-task", "--gpus-per-task", "--ntasks-per-node"),  # srun
    *("--jobid", "--overlap", "--kill-on-bad-exit", "--no-kill", "--batch", "--signal", "--qos"),
    *("--build-arg", "--nv"),  # apptainer
    *("--pid", "--timeout", "--pty", "--me", "--logdir"),  # py-spy, pytest, srun, squeue, tensorboard
    *("--fmad", "--list", "--check"),
    "--xla",  # in XLA_FLAGS
}
"""Options of other programs."""
SUFFIXES = (".py", ".md", ".sbatch", ".def", ".svg", ".toml")


def pages(*except_for):
    return [pytest.param(path, id=path.name) for path in PAGES if path.name not in except_for]


def prose(text):
    """The lines outside code blocks and tables, with their numbers."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside and not line.startswith("|"):
            yield number, line


def spans(text):
    """What is set as code, in lines and in blocks."""
    blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
    return [*blocks, *re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))]


def anchor(heading):
    """GitHub's name for a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@functools.cache
def options():
    """Every option of every subcommand, and those that programs of the checkout define in their text."""
    from psgd.launch.cli import LazyGroup

    found = {"--help", "--version"}

    def visit(command):
        for parameter in command.params:
            found.update(parameter.opts, parameter.secondary_opts)
        if isinstance(command, click.Group):
            with click.Context(command) as context:
                for name in command.list_commands(context):
                    visit(command.get_command(context, name))

    visit(LazyGroup("psgd"))
    for path in [*ROOT.glob("examples/*.py"), *ROOT.glob("tests/support/harness/*.py"), ROOT / "tests/conftest.py"]:
        found.update(re.findall(r"\"(--[a-z][a-z-]+)\"", path.read_text()))
    return found


@pytest.mark.parametrize("path", pages())
def test_lines_are_short(path):
    long = [(number, len(line)) for number, line in prose(path.read_text()) if len(line) > LONGEST]
    assert not long


@pytest.mark.parametrize("path", pages())
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if re.match(r"https?:", target):
            continue
        name, _, part = target.partition("#")
        page = (path.parent / name).resolve() if name else path
        assert page.exists(), target
        if part:
            headings = [line.lstrip("# ") for _, line in prose(page.read_text()) if line.startswith("#")]
            assert part in map(anchor, headings), target


@pytest.mark.parametrize("path", pages())
def test_files_exist(path):
    named = set()
    for text in spans(path.read_text()):
        named |= set(re.findall(r"(?<![\w./~-])[\w-]+(?:/[\w.-]+)+/?", text))
    ours = {each for each in named if each.split("/")[0] in {p.name for p in ROOT.iterdir()}}
    assert {each for each in ours if not (ROOT / each).exists() and not re.search(r"/[A-Z]+\b", each)} == set()


@pytest.mark.parametrize("path", pages("CHANGELOG.md"))
def test_single_file_names_exist(path):
    known = {
        p.name
        for folder in ("kernels", "collectives", "psgd", "launch", "tests", "docs", "examples", "slurm")
        for p in (ROOT / folder).rglob("*")
    } | {p.name for p in ROOT.iterdir()}
    named = {
        each for text in re.findall(r"`([^`\n]+)`", path.read_text()) for each in re.findall(r"^[\w]+\.\w+$", text)
    }
    named = {each for each in named if each.endswith(SUFFIXES)}
    assert named - known - {"script.py", "fit.py"} == set()


def resolve(name):
    """Imports the longest module in a dotted name, and looks up the rest."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            try:
                found = getattr(found, part)
            except UsageError:  # PyTorch or JAX is not installed
                assert part in found.__all__, name
                break
        return found
    raise AttributeError(name)


@pytest.mark.parametrize("path", pages())
def test_dotted_names_exist(path):
    named = {each for text in spans(path.read_text()) for each in re.findall(r"(?<![\w./-])psgd(?:\.\w+)+", text)}
    named -= {"psgd.sif", "psgd.def"}
    for name in sorted(named):
        resolve(name)


@pytest.mark.parametrize("path", pages())
def test_options_exist(path):
    named = {each for text in spans(path.read_text()) for each in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)}
    assert named - options() - ELSEWHERE == set()


def commands():
    """Every call of `psgd` in a code block, as its arguments; those with `...` or `[optional]` parts are left out."""
    for path in PAGES:
        for block in re.findall(r"```\n(.*?)```", path.read_text(), re.DOTALL):
            for line in block.splitlines():
                found = re.search(
                    r"(?:^|\s)psgd ((?:train|bench|doctor|checkpoint|plot|slurm) ?.*)$", re.sub(r"\s#.*", "", line)
                )
                if found and "..." not in line and "[" not in found[1]:
                    yield pytest.param(shlex.split(found[1]), id=found[1].strip())


@pytest.mark.parametrize("arguments", [*commands()])
def test_commands_are_understood(arguments):
    from psgd.launch.cli import LazyGroup

    command = LazyGroup("psgd")
    context = click.Context(command)
    while isinstance(command, click.Group) and arguments:
        name, command, arguments = command.resolve_command(context, arguments)
        assert command is not None, name
        if isinstance(command, click.Group):
            context = click.Context(command, parent=context)
    command.make_context("psgd", list(arguments))


def test_environment_variables_exist():
    code = "".join(
        p.read_text()
        for folder in ("kernels", "collectives", "psgd", "launch", "tests", "slurm")
        for p in (ROOT / folder).rglob("*")
        if p.suffix in (".py", ".sbatch") and p.name != Path(__file__).name
    )
    named = {each for path in PAGES for each in re.findall(r"\bPSGD_[A-Z_]+", path.read_text())}
    assert len(named) > 10 and {each for each in named if each not in code} == set()


def test_the_signature_of_connect():
    import psgd

    block = re.search(r"```python\npsgd\.connect\((.*?)\)\n```", (ROOT / "docs/api.md").read_text(), re.DOTALL)[1]
    call = ast.parse(f"f({block})".replace("*, ", "").replace("**strategy_options", "**options")).body[0].value
    shown = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
    real = inspect.signature(psgd.connect).parameters.values()
    assert shown == {p.name: p.default for p in real if p.default is not p.empty}
    assert [each.id for each in call.args] == ["comm", "params"]


@pytest.mark.parametrize("path", pages())
def test_what_connect_gives_exists(path):
    from psgd.connection import Connection

    named = {each for text in spans(path.read_text()) for each in re.findall(r"\bps\.(\w+)", text)}
    source = inspect.getsource(Connection)
    assert {name for name in named if not hasattr(Connection, name) and f"self.{name}" not in source} == set()


def test_the_table_of_strategies_has_all():
    from psgd.strategies import STRATEGIES

    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert set(rows) == set(STRATEGIES)
    linked = re.findall(r"^\| \[(\w+)\]\(strategies/\1\.md\)", (ROOT / "docs/strategies.md").read_text(), re.MULTILINE)
    assert set(linked) == set(STRATEGIES)


def test_each_strategy_has_a_page_that_says_the_same_things():
    from psgd.strategies import STRATEGIES

    for name in STRATEGIES:
        text = (ROOT / f"docs/strategies/{name}.md").read_text()
        said = re.findall(r"^- \*\*(Use it|Avoid it|Cost|Memory|Source|Code)", text, re.MULTILINE)
        assert {"Use it", "Avoid it", "Cost", "Memory", "Source", "Code"} - set(said) == set(), name
        (code,) = re.findall(r"^- \*\*Code\*\*: `([\w/.]+)`", text, re.MULTILINE)
        assert (ROOT / code).exists()


@pytest.mark.parametrize("folder", ["kernels", "collectives", "psgd", "launch"])
def test_each_room_is_explained(folder):
    explained = set(re.findall(r"^\| (.*?) \|", (ROOT / "docs/design.md").read_text(), re.MULTILINE))
    names = {name for cell in explained for name in re.findall(r"`([\w./]+)`", cell)}
    inside = [p for p in (ROOT / folder).iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()]
    rooms = [p.name for p in inside if p.is_dir() or folder in ("psgd", "collectives")]
    assert {room for room in rooms if room != "__init__.py"} - names - {n.partition("/")[2] for n in names} == set()


def test_checks_can_fail(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        f"{'x' * 121}\n`psgd.nothing.here` `--no-such-option` `psgd/no_such.py` [a](nowhere.md)\n| {'y' * 200} |\n"
    )
    assert [number for number, line in prose(page.read_text()) if len(line) > LONGEST] == [1]
    for check in (test_links_lead_somewhere, test_files_exist, test_dotted_names_exist, test_options_exist):
        with pytest.raises((AssertionError, AttributeError)):
            check(page)
