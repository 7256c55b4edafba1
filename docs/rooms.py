"""Draws docs/rooms.svg, the picture of the house, from the imports: run `python docs/rooms.py` after they change.

A box is a folder, or a module that stands alone. The many single modules of `kernels` and `launch` share boxes. An
arrow goes from a box to one that it imports. Arrows that follow from others are left out (the transitive reduction),
and so is the layering: a box is one row above the highest box that it needs, or lower if nothing needs it there.
"""

import ast
import random
from collections.abc import Iterable, Iterator
from itertools import pairwise, permutations
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"launch": "psgd.launch", "psgd": "psgd", "collectives": "psgd.collectives", "kernels": "psgd.kernels"}
"""Top to bottom, with their import names."""
SHARE = 9
"""A folder with more single modules than this draws them together."""
CAPTIONS = {
    "launch": "the psgd command",
    "psgd": "training",
    "collectives": "for any MPI program",
    "kernels": "arithmetic on flat arrays",
    "launch.bench": "psgd bench",
    "launch.doctor": "psgd doctor",
    "launch.plot": "psgd plot",
    "launch.slurm": "psgd slurm",
    "launch.output": "lines, progress, summary",
    "launch.usage": "what a user may have meant",
    "launch.view": "psgd top, psgd trace",
    "launch.memory": "does it fit, before MPI starts",
    "launch.*": "options, mpiexec, startup, ...",
    "launch.**": "psgd train, starting the ranks",
    "psgd.training": "one rank of psgd train",
    "psgd.estimate": "a rank's memory, before the run",
    "psgd.connector": "psgd.connect: checks, agreement",
    "psgd.config": "the options of a run",
    "psgd.connection": "one rank's part, in a with block",
    "psgd.teardown": "how a rank leaves",
    "psgd.torch": "PyTorch: wrap, optimizer, hooks",
    "psgd.jax": "JAX: a pytree and its loss",
    "psgd.user": "the user's FILE.py:FUNCTION",
    "psgd.strategies": "sync, ssp, allreduce, easgd, ...",
    "psgd.worker": "what a training loop holds",
    "psgd.server": "header, log, shard, transports",
    "psgd.backend": "gradients on CPU or GPU",
    "psgd.compression": "options and residuals",
    "psgd.optim": "rules, schedules, the step",
    "psgd.checkpoint": "format, save, resume",
    "psgd.data": "datasets, batches",
    "psgd.nn": "layers, stages, models, layout",
    "psgd.metrics": "counters, events, waits",
    "psgd.runtime": "mesh, agreement, failures",
    "collectives.functions": "single algorithms",
    "collectives.compressed": "all-reduce with a codec",
    "collectives.communicator": "mpi4py's verbs",
    "collectives.started_verbs": "non-blocking and persistent",
    "collectives.fastpath": "small calls on one node",
    "collectives.dispatch": "choice, engine, errors",
    "collectives.algorithms": "ring, trees, hierarchical, ...",
    "collectives.device": "GPU memory",
    "collectives.peers": "kernels among GPUs of a host",
    "collectives.arguments": "buffers, Call, operations",
    "collectives.shm": "compiled, in shared memory",
    "collectives.mpi": "waits, tags, nodes, memory",
    "kernels.device": "twins of the others for GPUs",
    "kernels.codecs": "compressed updates",
    "kernels.layers": "products, windows, loss",
    "kernels.memory": "atomic words, cache lines",
    "kernels.cache": "compiled code on disk",
    "kernels.*": "update, accumulate, jit, errors, ...",
    "kernels.**": "reduce, elastic",
}
"""At most about 34 characters for a box."""
Graph = dict[str, set[str]]


def modules() -> dict[str, Path]:
    """Every module of the four folders by its import name."""
    found = {}
    for folder, package in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            inner = path.relative_to(ROOT / folder).with_suffix("").parts
            name = ".".join([package, *(part for part in inner if part != "__init__")])
            found[name] = path
    return found


def imported(path: Path, known: Iterable[str]) -> Iterator[str]:
    """The modules among `known` that a file imports, inside functions and under TYPE_CHECKING too."""
    known = set(known)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield from {inner if inner in known else node.module} & known
        elif isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & known


def folder_of(module: str) -> str:
    """Which of the four folders a module lies in."""
    return next((f for f, p in FOLDERS.items() if p != "psgd" and (module + ".").startswith(p + ".")), "psgd")


def graphs() -> tuple[Graph, dict[str, Graph]]:
    """The imports among the four folders, and among the boxes of each.

    A box's name is its folder's and its own: `psgd.server`. Single modules that share a box are `launch.*`; those of
    them that import another box of the folder which imports some of them (`kernels.reduce`) are `kernels.**`. The four
    `__init__` are no boxes.
    """
    paths = modules()
    imports = {name: set(imported(path, paths)) for name, path in paths.items()}
    outer: Graph = {folder: set() for folder in FOLDERS}
    for name, others in imports.items():
        outer[folder_of(name)] |= {folder_of(other) for other in others} - {folder_of(name)}
    return outer, {folder: _boxes(folder, package, imports) for folder, package in FOLDERS.items()}


def _boxes(folder: str, package: str, imports: Graph) -> Graph:
    inside = {name for name in imports if folder_of(name) == folder and name != package}
    top = {name: name[len(package) + 1 :].split(".")[0] for name in inside}
    single = {name for name in inside if (ROOT / folder / f"{top[name]}.py").exists()}
    box = {name: f"{folder}.{top[name]}" for name in inside}
    if len(single) > SHARE:
        rooms = {name for name in inside - single if _reached(name, imports) & single}  # others lie below all
        low = {name for name in single if not _reached(name, imports) & rooms}
        box |= {name: f"{folder}.*" if name in low else f"{folder}.**" for name in single}
    graph: Graph = {each: set() for each in box.values()}
    for name in inside:
        graph[box[name]] |= {box[other] for other in imports[name] & inside} - {box[name]}
    return graph


def _reached(start: str, graph: Graph) -> set[str]:
    """All that `start` imports, directly or through others."""
    seen, todo = set(), [start]
    while todo:
        new = graph[todo.pop()] - seen
        seen |= new
        todo += new
    return seen


def reduced(graph: Graph) -> Graph:
    """The same graph without the arrows that follow from others."""
    through = {a: set().union(*(_reached(b, graph) for b in others)) for a, others in graph.items()}
    return {a: others - through[a] for a, others in graph.items()}


def rows(graph: Graph) -> dict[str, int]:
    """Each box's row, 0 at the bottom: as low as its imports let it, then as high as its users let it.

    Raises:
        ValueError: a cycle.
    """
    low: dict[str, int] = {}
    while len(low) < len(graph):
        ready = {a for a, others in graph.items() if a not in low and others <= low.keys()}
        if not ready:
            raise ValueError(f"a cycle among {sorted(graph.keys() - low)}")
        low |= {a: max((low[b] + 1 for b in graph[a]), default=0) for a in ready}
    high = dict(low)
    for a in sorted(graph, key=lambda name: -low[name]):
        users = [high[b] for b, others in graph.items() if a in others]
        high[a] = min(users) - 1 if users else low[a]
    return high


class Place(NamedTuple):
    """Where the middle of a box is, and its half width (0 where only an arrow passes)."""

    x: float
    y: float
    half: float


WIDTH, HEIGHT, PITCH, GAP, PASS = 212, 40, 66, 22, 26
STARTS = 50


def _placed(graph: Graph, middle: float, top: float) -> tuple[dict[str, Place], dict[tuple[str, str], list[Place]]]:
    """The boxes of a panel, and for each arrow the places that it goes through between its ends."""
    level = rows(graph)
    height = max(level.values())
    lines: list[list[str]] = [[] for _ in range(height + 1)]
    for name in sorted(graph):
        lines[level[name]].append(name)
    links: list[tuple[str, str]] = []
    for a in sorted(graph):
        for b in sorted(graph[a]):
            chain = [a, *(f"{a}>{b}>{row}" for row in range(level[a] - 1, level[b], -1)), b]
            for row, name in zip(range(level[a] - 1, level[b], -1), chain[1:-1], strict=True):
                lines[row].append(name)
            links += pairwise(chain)
    _order(lines, links)
    places = {}
    for row, line in enumerate(lines):
        widths = [WIDTH if name in graph else PASS for name in line]
        x = middle - (sum(widths) + GAP * (len(line) - 1)) / 2
        for name, width in zip(line, widths, strict=True):
            places[name] = Place(x + width / 2, top + (height - row) * PITCH + HEIGHT / 2, width / 2)
            x += width + GAP
    arrows = {}
    for a in graph:
        for b in graph[a]:
            between = [f"{a}>{b}>{row}" for row in range(level[a] - 1, level[b], -1)]
            arrows[a, b] = [places[a], *(Place(*places[name][:2], 0) for name in between), places[b]]
    return {name: places[name] for name in graph}, arrows


def _order(lines: list[list[str]], links: list[tuple[str, str]]) -> None:
    """Orders each row so that few arrows cross and all are short: the best that some random starts lead to."""
    rng, best = random.Random(0), (float("inf"), lines)
    for _ in range(STARTS):
        found = [rng.sample(sorted(line), len(line)) for line in lines]
        last = float("inf")
        while (cost := _settled(found, links)) < last:
            last = cost
        best = min(best, (cost, found))
    lines[:] = best[1]


def _settled(lines: list[list[str]], links: list[tuple[str, str]]) -> float:
    """Gives each row in turn its best order, the others fixed. Returns what the whole costs then."""
    for row, line in enumerate(lines):
        near = range(max(0, row - 1), min(len(lines), row + 2))
        trials = []
        for order in permutations(line):
            lines[row] = list(order)
            trials.append((_cost([lines[r] for r in near], links), lines[row]))
        lines[row] = min(trials)[1]
    return _cost(lines, links)


def _cost(lines: list[list[str]], links: list[tuple[str, str]]) -> float:
    """Crossings of arrows between neighbouring rows, and how far their ends are apart."""
    place = {name: (row, at - (len(line) - 1) / 2) for row, line in enumerate(lines) for at, name in enumerate(line)}
    ends = [(place[a], place[b]) for a, b in links if a in place and b in place]
    crossed = sum(
        (a[1] - c[1]) * (b[1] - d[1]) < 0 for i, (a, b) in enumerate(ends) for c, d in ends[:i] if a[0] == c[0]
    )
    return 100 * crossed + sum(abs(a[1] - b[1]) for a, b in ends)


def _curve(places: list[Place]) -> str:
    """A path from under the first place to above the last one, straight down beside the boxes between."""
    first, *between, last = places
    second, before = [*between, last][0], [first, *between][-1]
    start = first.x + max(-40.0, min(40.0, (second.x - first.x) / 5))
    end = last.x + max(-40.0, min(40.0, (before.x - last.x) / 5))
    path, x, y = f"M{start:.0f},{first.y + HEIGHT / 2:.0f}", start, first.y + HEIGHT / 2
    for to_x, to_y in [*((p.x, p.y - HEIGHT / 2) for p in between), (end, last.y - HEIGHT / 2 - 7)]:
        half = y + (to_y - y) / 2
        path += f" C{x:.0f},{half:.0f} {to_x:.0f},{half:.0f} {to_x:.0f},{to_y:.0f}"
        x, y = to_x, to_y
        if (to_x, to_y) != (end, last.y - HEIGHT / 2 - 7):
            y = to_y + HEIGHT
            path += f" V{y:.0f}"
    return path


def _panel(folder: str, graph: Graph, left: float, top: float, width: float) -> tuple[list[str], float]:
    """One folder's lines of SVG, and its height."""
    height = 44 + (max(rows(graph).values()) + 1) * PITCH - (PITCH - HEIGHT) + 18
    text = [
        f'<rect class="folder" data-folder="{folder}" x="{left:.0f}" y="{top:.0f}" width="{width:.0f}"'
        f' height="{height:.0f}" rx="10"/>',
        f'<text class="folder" x="{left + 16:.0f}" y="{top + 27:.0f}">{folder}/ '
        f'<tspan class="caption">{escape(CAPTIONS[folder])}</tspan></text>',
    ]
    places, arrows = _placed(reduced(graph), left + width / 2, top + 44)
    for (a, b), through in sorted(arrows.items()):
        text.append(f'<path class="arrow" data-from="{a}" data-to="{b}" d="{_curve(through)}"/>')
    for name, place in sorted(places.items()):
        text += _box(name, place)
    return text, height


def _box(name: str, place: Place) -> list[str]:
    label = name.partition(".")[2]
    label = "single modules" if label.startswith("*") else label
    return [
        f'<rect class="box" data-box="{name}" x="{place.x - place.half:.0f}" y="{place.y - HEIGHT / 2:.0f}"'
        f' width="{2 * place.half:.0f}" height="{HEIGHT}" rx="6"/>',
        f'<text class="name" x="{place.x:.0f}" y="{place.y - 3:.0f}">{escape(label)}</text>',
        f'<text class="small" x="{place.x:.0f}" y="{place.y + 13:.0f}">{escape(CAPTIONS.get(name, ""))}</text>',
    ]


STYLE = """
text { font-family: Helvetica, Arial, sans-serif; fill: #1c2733; }
text.folder { font-size: 17px; font-weight: bold; }
.caption { font-size: 13px; font-weight: normal; fill: #52606d; }
text.name { font-size: 14px; font-weight: bold; text-anchor: middle; }
text.small { font-size: 11.5px; text-anchor: middle; fill: #52606d; }
rect.folder { fill: #f4f6f8; stroke: #9aa5b1; }
rect.box { fill: #ffffff; stroke: #3d6fb4; stroke-width: 1.4; }
path.arrow { fill: none; stroke: #5f7285; stroke-width: 1.4; marker-end: url(#head); }
path.outer { fill: none; stroke: #1c2733; stroke-width: 3; marker-end: url(#big); }
"""


def svg() -> str:
    """The whole picture: launch on top, psgd with collectives beside it, kernels at the bottom."""
    outer, inner = graphs()
    if any(list(FOLDERS).index(b) <= list(FOLDERS).index(a) for a, others in outer.items() for b in others):
        raise ValueError("a folder imports one above it")
    full, wide, narrow, gap = 1080.0, 540.0, 494.0, 46.0
    panels = {}
    panels["launch"], height = _panel("launch", inner["launch"], 0, 0, full)
    top = height + gap
    panels["psgd"], height = _panel("psgd", inner["psgd"], 0, top, wide)
    bottom = top + height
    _, height = _panel("collectives", inner["collectives"], 0, 0, narrow)
    side = max(top + 74, bottom - height)  # below the arrow that comes from psgd
    panels["collectives"], _ = _panel("collectives", inner["collectives"], full - narrow, side, narrow)
    bottom = max(bottom, side + height)
    panel_height = height
    panels["kernels"], height = _panel("kernels", inner["kernels"], 0, bottom + gap, full)
    middle = full - narrow / 2
    between = {
        ("launch", "psgd"): f"M{wide / 2:.0f},{top - gap:.0f} V{top - 9:.0f}",
        ("psgd", "collectives"): f"M{wide:.0f},{top + 26:.0f} H{middle:.0f} V{side - 9:.0f}",
        ("collectives", "kernels"): f"M{middle:.0f},{side + panel_height:.0f} V{bottom + gap - 9:.0f}",
    }
    total = bottom + gap + height
    text = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-8 -8 {full + 16:.0f} {total + 16:.0f}">',
        "<!-- Made by docs/rooms.py from the imports. -->",
        f"<style>{STYLE}</style>",
        "<defs>",
        *(
            f'<marker id="{name}" markerWidth="{size}" markerHeight="{size}" refX="2" refY="4" orient="auto"'
            f' viewBox="0 0 9 8"><path d="M0,0 L9,4 L0,8 z" fill="{colour}"/></marker>'
            for name, size, colour in (("head", 7, "#5f7285"), ("big", 4, "#1c2733"))
        ),
        "</defs>",
        '<rect x="-8" y="-8" width="100%" height="100%" fill="#ffffff"/>',
    ]
    for lines in panels.values():
        text += lines
    for a, others in reduced(outer).items():
        text += [f'<path class="outer" data-from="{a}" data-to="{b}" d="{between[a, b]}"/>' for b in sorted(others)]
    return "\n".join([*text, "</svg>", ""])


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(svg())
