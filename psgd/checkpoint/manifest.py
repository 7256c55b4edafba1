"""What a checkpoint is as a whole: one JSON file, written when all shards are on the disk.

Its last member is the SHA-256 of all bytes before it, so that nothing in it can change unseen. Format 1, of earlier
versions, has none: it is read, and whoever reads it says so.
"""

import hashlib
import json
import math
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from psgd.checkpoint.files import MOST_JSON_BYTES, parse_object, read_text, write_whole
from psgd.checkpoint.shards import ShardFile
from psgd.kernels.errors import CheckpointError, UsageError
from psgd.nn.layout import Layout
from psgd.runtime.jsonable import JSON

FILE = "manifest.json"
FORMAT, UNSEALED = "psgd checkpoint 2", "psgd checkpoint 1"
IN_PIECES = "psgd checkpoint 3"
"""Of a model in pieces: earlier versions would take the first piece for all."""
SHARED = "psgd checkpoint 4"
"""Of workers that share vectors, of a model in pieces or whole: earlier versions would take the first one's for all."""
PIECE = re.compile(r"[a-z][a-z0-9]{0,23}")
"""The name of a piece, as in `pipe1tensor0`."""
UNCHECKED = "its manifest has no checksum (an earlier version wrote it), so damage to it may go unnoticed"
_FORMATS = (FORMAT, UNSEALED, IN_PIECES, SHARED)
_SEALED = re.compile(rb'(\{.*),\n "sha256": "([0-9a-f]{64})"\n\}\n', re.DOTALL)


def software() -> dict[str, str]:
    """The versions of what runs here, for a manifest."""
    found = {"python": platform.python_version()}
    for name in ("psgd", "numpy", "numba", "mpi4py"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint is.

    Attributes:
        step: global steps behind it; names the folder.
        samples: samples behind it.
        version: groups applied, where there are servers.
        accuracy: on the test samples, of the newest evaluation before it; None where there was none.
        run: what the run was started with: the options, workers, servers.
        algorithms: collective algorithms in use.
        software: versions.
        layout: names and shapes in the flat vector, of a model in pieces of the whole; None where they are not known.
        pieces: the layouts of a model's pieces, by the names with which their shards begin; none where it is whole.
        shards: every rank's file.
        format: of the file.
    """

    step: int
    samples: int
    version: int = 0
    accuracy: float | None = None
    run: dict[str, JSON] = field(default_factory=dict)
    algorithms: dict[str, JSON] = field(default_factory=dict)
    software: dict[str, str] = field(default_factory=software)
    layout: Layout | None = None
    pieces: dict[str, Layout] = field(default_factory=dict)
    shards: tuple[ShardFile, ...] = ()
    format: str = FORMAT

    @property
    def sealed(self) -> bool:
        """Whether a checksum covers it."""
        return self.format != UNSEALED

    @property
    def shared(self) -> bool:
        """Whether workers have saved ranges of vectors that they share."""
        return any(shard.ranges is not None for shard in self.shards)

    @property
    def leaders(self) -> list[str]:
        """The shard of rank 0, which knows the whole run's counters; of a model in pieces one of each."""
        found = []
        for piece in self.pieces or ("",):
            names = [*self.names("server", piece), *self.names("worker", piece)]
            if not names:
                raise CheckpointError("no shard of a server or a worker" + (f" of {piece}" if piece else ""))
            found.append(names[0])
        return found

    def has_workers(self, workers: int) -> bool:
        """Whether its run had so many workers from its beginning on, none of which had died."""
        return self.run.get("workers") == workers and "lost" not in self.run

    def shard(self, name: str) -> ShardFile:
        """The shard of that name.

        Raises:
            CheckpointError: there is none.
        """
        for shard in self.shards:
            if shard.name == name:
                return shard
        raise CheckpointError(f"no shard {name}: the shards are {', '.join(self.names())}")

    def names(self, role: str = "", piece: str = "") -> list[str]:
        """Names of the shards, of one role (`server`, `worker`) of a piece or all, in order of role and index."""
        names = [shard.name for shard in self.shards if not role or shard.name.partition("-")[0] == piece + role]
        return sorted(names, key=lambda name: (name.partition("-")[0], int(name.partition("-")[2] or 0)))


def write(folder: Path, manifest: Manifest, shards: Sequence[ShardFile]) -> None:
    """Writes the manifest with these shards into the folder, and reads it back.

    Raises:
        OSError: it cannot be written.
        CheckpointError: it could not be read: too long, or a field that cannot be.
    """
    write_whole(folder / FILE, [encode(replace(manifest, shards=tuple(shards)))])
    read(folder)


def encode(manifest: Manifest) -> bytes:
    """The file's bytes. Raises CheckpointError where they are more than what is read."""
    body = json.dumps(as_json(manifest), indent=1).encode().removesuffix(b"\n}")
    text = body + b',\n "sha256": "%s"\n}\n' % hashlib.sha256(body).hexdigest().encode()
    if len(text) > MOST_JSON_BYTES:
        raise CheckpointError(f"{FILE}: expected at most {MOST_JSON_BYTES:,} bytes, got {len(text):,}")
    return text


def as_json(manifest: Manifest) -> dict[str, JSON]:
    """The manifest as its file has it, without the checksum."""
    fields = {name: getattr(manifest, name) for name in Manifest.__dataclass_fields__}
    layout = None if manifest.layout is None else json.loads(manifest.layout.to_json())
    shards = [shard.as_json() for shard in manifest.shards]
    fields |= {"layout": layout, "shards": shards, "pieces": _pieces_as_json(manifest)}
    if manifest.pieces:
        fields["format"] = IN_PIECES
    else:
        del fields["pieces"]
    if manifest.shared:
        fields["format"] = SHARED
    return {"format": fields["format"], **fields}


def _pieces_as_json(manifest: Manifest) -> dict[str, JSON]:
    return {name: json.loads(layout.to_json()) for name, layout in manifest.pieces.items()}


def read(folder: Path) -> Manifest:
    """Reads a folder's manifest; every field has its type then, and shards have names that stay in the folder.

    Raises:
        CheckpointError: it is missing, damaged or of another version.
    """
    path = folder / FILE
    text = read_text(path)
    fields = parse_object(text, str(path))
    if fields.get("format") in _FORMATS and not _is_whole(text, fields):
        raise CheckpointError(f"{path}: damaged: its checksum does not match")
    try:
        return _checked(fields)
    except (UsageError, KeyError, TypeError, ValueError, OverflowError) as error:
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else error
        raise CheckpointError(f"{path}: not a manifest that this version of psgd can read: {reason}") from None


def _is_whole(text: bytes, fields: dict[str, Any]) -> bool:
    """Whether it is what was written: by its checksum, or of the earlier format, which has none."""
    if fields["format"] == UNSEALED:
        return "sha256" not in fields
    sealed = _SEALED.fullmatch(text)
    return sealed is not None and hashlib.sha256(sealed[1]).hexdigest().encode() == sealed[2]


def _checked(fields: dict[str, Any]) -> Manifest:
    if fields["format"] not in _FORMATS:
        raise CheckpointError(
            f"expected format {FORMAT!r}, {IN_PIECES!r} or {SHARED!r}, got {str(fields['format'])[:80]!r}"
        )
    for name in ("step", "samples", "version"):
        if type(fields[name]) is not int or not 0 <= fields[name] < 2**63:
            raise CheckpointError(f"{name}: expected a whole number, got {str(fields[name])[:80]!r}")
    for name in ("run", "algorithms", "software"):
        if not isinstance(fields[name], dict):
            raise CheckpointError(f"{name}: expected an object, got {str(fields[name])[:80]!r}")
    accuracy = fields["accuracy"]
    if accuracy is not None and not (type(accuracy) in (int, float) and math.isfinite(accuracy)):
        raise CheckpointError(f"accuracy: expected a number or null, got {str(accuracy)[:80]!r}")
    if not isinstance(fields["shards"], list) or not fields["shards"]:
        raise CheckpointError("shards: expected a list of at least one shard")
    shards = tuple(ShardFile.from_json(entry) for entry in fields["shards"])
    if len({shard.name for shard in shards}) < len(shards):
        raise CheckpointError("shards: expected different names, got one name twice")
    layout = None if fields["layout"] is None else Layout.from_json(json.dumps(fields["layout"]))
    in_pieces = fields["format"] == IN_PIECES or (fields["format"] == SHARED and "pieces" in fields)
    pieces = _checked_pieces(fields["pieces"]) if in_pieces else {}
    known = {name: fields[name] for name in Manifest.__dataclass_fields__ if name != "pieces"}
    return Manifest(**{**known, "layout": layout, "pieces": pieces, "shards": shards})


def _checked_pieces(fields: Any) -> dict[str, Layout]:
    if not isinstance(fields, dict) or not fields or not all(PIECE.fullmatch(name) for name in fields):
        raise CheckpointError(f"pieces: expected layouts by names such as pipe0, got {str(fields)[:80]!r}")
    return {name: Layout.from_json(json.dumps(layout)) for name, layout in fields.items()}
