"""`psgd checkpoint`: what a saved run holds, whether it is intact, and its weights for other programs."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psgd.kernels.errors import CheckpointError
from psgd.kernels.notice import counted
from psgd.launch.usage.groups import Group

if TYPE_CHECKING:
    from psgd.checkpoint.folder import Checkpoint
    from psgd.checkpoint.manifest import Manifest
    from psgd.nn.layout import Layout


_BEST = click.option("--best", is_flag=True, help="Of a folder, use the one with the best test accuracy.")


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def checkpoint(ctx: click.Context) -> None:
    """Inspect checkpoints. PATH is a checkpoint, or a folder of them: then the newest complete one is used."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@checkpoint.command()
@click.argument("path")
@_BEST
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as one JSON object.")
def show(path: str, best: bool, as_json: bool) -> None:
    """Print what a checkpoint holds, and which of its folder is the best."""
    from psgd.checkpoint import folder, manifest

    found = _find(path, best)
    directory = found.path.absolute().parent
    chosen = folder.best_of(folder.readable(directory))
    fields = {"path": str(found.path), "best": None if chosen is None else str(found.path.with_name(chosen.path.name))}
    fields |= manifest.as_json(found.manifest)
    click.echo(json.dumps(fields) if as_json else "\n".join(_lines(found, chosen)))


@checkpoint.command()
@click.argument("path")
def verify(path: str) -> int:
    """Read all of a checkpoint, or of each one in a folder, and check it. The exit code is 1 if one is damaged."""
    from psgd.checkpoint import folder, manifest

    place = Path(path)
    paths = [place] if _is_one(place) else folder.folders(place)
    if not paths:
        raise CheckpointError(f"{path}: expected a checkpoint or a folder of checkpoints, found none")
    damaged = 0
    for one in paths:
        try:
            found = folder.open_checkpoint(one)
            found.verify()
            for name in found.manifest.names():
                found.state(name)
        except CheckpointError as error:
            damaged += 1
            click.echo(f"{one.name}: damaged: {error}")
        else:
            unchecked = "" if found.manifest.sealed else f"; {manifest.UNCHECKED}"
            click.echo(f"{one.name}: intact, {counted(len(found.manifest.shards), 'shard')}{unchecked}")
    return 1 if damaged else 0


@checkpoint.command()
@click.argument("path")
@_BEST
@click.option("-o", "--output", default="weights.npz", show_default=True, metavar="FILE", help="Output: .npz or .pt.")
def export(path: str, best: bool, output: str) -> None:
    """Write the weights under their layers' names: .npz for NumPy, or .pt, a state dict for PyTorch."""
    from psgd.checkpoint import export as exporter

    target = Path(output)
    exporter.check(target, "-o")
    names = exporter.write(target, *_weights(_find(path, best)), "-o")
    click.echo(f"wrote {target}: {', '.join(names)}")


def _is_one(path: Path) -> bool:
    from psgd.checkpoint.manifest import FILE

    return (path / FILE).exists()


def _find(path: str, best: bool = False) -> "Checkpoint":
    """The checkpoint that a path means, verified; with `best` that of a folder with the best test accuracy."""
    from psgd.checkpoint import folder, manifest

    def warn(line: str) -> None:
        click.echo(f"psgd: warning: {line}", err=True)

    place = Path(path)
    if best and not _is_one(place):
        chosen = folder.best_of(folder.readable(place))
        if chosen is None:
            raise CheckpointError(f"{path}: --best: expected a folder of checkpoints that were evaluated, found none")
        place = chosen.path
    if _is_one(place):
        found = folder.open_checkpoint(place)
        found.verify()
        if not found.manifest.sealed:
            warn(f"{path}: {manifest.UNCHECKED}")
        return found
    for found in folder.complete(place, warn):
        return found
    raise CheckpointError(f"{path}: expected a checkpoint or a folder with a complete one, found none")


def _lines(found: "Checkpoint", best: "Checkpoint | None") -> list[str]:
    shown = found.manifest
    accuracy = "none yet" if shown.accuracy is None else f"{shown.accuracy:.4f}"
    chosen = ""
    if best is not None:
        same = best.manifest.step == shown.step
        chosen = "this one" if same else f"{best.path.name}, accuracy {best.manifest.accuracy:.4f}"
    rows = [
        ("checkpoint", str(found.path)),
        ("step", f"{shown.step:,}"),
        ("samples", f"{shown.samples:,}"),
        ("version", f"{shown.version:,}"),
        ("accuracy", accuracy),
        ("best", chosen),
        ("size", f"{sum(shard.size for shard in shown.shards):,} bytes in {counted(len(shown.shards), 'shard')}"),
        ("written by", ", ".join(f"{name} {number}" for name, number in shown.software.items())),
        ("run", _brief(shown.run)),
        ("algorithms", _brief(shown.algorithms)),
    ]
    lines = [f"{name:<12} {text}" for name, text in rows if text]
    for name in shown.names():
        lines.append(f"{name:<12} {shown.shard(name).size:,} bytes, SHA-256 {shown.shard(name).sha256[:16]}...")
    if shown.shared:
        lines.append(_shared(shown))
    if shown.layout is not None:
        lines += [f"{entry.name:<12} {' x '.join(map(str, entry.shape))}" for entry in shown.layout.parameters]
    return lines


def _shared(shown: "Manifest") -> str:
    """Who has what of the vectors that workers share."""
    sharing = [shard for shard in shown.shards if shard.ranges is not None]
    pieces = len(shown.pieces) or 1
    whole = " and ".join(f"{of:,}" for of in dict.fromkeys(shard.of for shard in sharing))
    return f"{'sharded':<12} each shard has 1/{len(sharing) // pieces} of {whole} elements"


def _brief(facts: dict[str, Any]) -> str:
    """Those that say something: options that are not set are saved as such, or as a text of it."""
    empty: tuple[object, ...] = (None, "", [], {}, "None", "[]", "{}")
    files = facts.get("files") or {}
    if isinstance(files, dict) and files:  # of the user; a model of one's own has no `hidden`
        omitted = {"files", "hidden"} if "model" in files else {"files"}
        facts = {name: value for name, value in facts.items() if name not in omitted}
        facts |= {f"{name} file": f"with SHA-256 {str(checksum)[:16]}..." for name, checksum in files.items()}
    return ", ".join(f"{name} {value}" for name, value in facts.items() if value not in empty)


def _weights(found: "Checkpoint") -> tuple[Any, "Layout | None"]:
    """The parameters, and the layout that was saved with them."""
    from psgd.checkpoint import vectors
    from psgd.checkpoint.pieces.rearranged import joined

    found = joined(found)
    layout = found.manifest.layout
    names = [] if layout is None else [*(entry.name for entry in layout.parameters), *dict(layout.tied)]
    if odd := [name for name in names if not re.fullmatch(r"[\w.-]+", name)]:
        raise CheckpointError(f"{found.path}: cannot export a parameter named {odd[0]!r}")
    return vectors.weights([found.state(name) for name in found.manifest.names()]), layout
