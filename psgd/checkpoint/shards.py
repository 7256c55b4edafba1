"""One rank's state as a safetensors file, with a small JSON file beside it that says its size and SHA-256.

The format (https://huggingface.co/docs/safetensors): 8 bytes, the length of a JSON header; the header, which names each
tensor's type, shape and bytes; then the bytes. It is written here, straight from the arrays in one pass that also
hashes and without the interpreter's lock; it is read by the safetensors library.
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from psgd.checkpoint.files import open_plain, parse_object, read_text, sync_folder, write_whole
from psgd.checkpoint.state import WEIGHTS, State
from psgd.kernels.errors import CheckpointError
from psgd.runtime.jsonable import JSON, MOST_COUNTED

SUFFIX = ".safetensors"
NAME = re.compile(r"[a-z][a-z0-9]{0,31}(-\d{1,9})?")
_FORMAT = "psgd shard 1"
TYPES = {
    np.dtype(ours): theirs
    for ours, theirs in {
        "<f8": "F64", "<f4": "F32", "<f2": "F16", "<i8": "I64", "<i4": "I32", "<i2": "I16", "i1": "I8",
        "<u8": "U64", "<u4": "U32", "<u2": "U16", "u1": "U8", "?": "BOOL",
    }.items()
}  # fmt: skip
_CHUNK = 4 << 20
MOST_HEADER_BYTES = 100_000_000
"""Of names, shapes and facts as JSON: the safetensors library reads no more."""


@dataclass(frozen=True)
class ShardFile:
    """What a manifest knows of one rank's file.

    Attributes:
        name: `server-0`, `worker-3`, ...
        size: bytes.
        sha256: hexadecimal.
        ranges: of a rank that shares vectors with others: what its own ones, one range after the other, are of the
            whole ones; ascending. None where it has them whole, or none.
        of: elements of such a whole vector.
    """

    name: str
    size: int
    sha256: str
    ranges: tuple[range, ...] | None = None
    of: int = 0

    def __post_init__(self) -> None:
        """Raises CheckpointError where a field cannot be: these come from files."""
        good = isinstance(self.name, str) and NAME.fullmatch(self.name)
        if not good or type(self.size) is not int or self.size < 0:
            raise CheckpointError(
                f"shard: expected a name such as server-0 and a size, got {self.name!r}, {self.size!r}"
            )
        if not isinstance(self.sha256, str) or not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise CheckpointError(f"shard {self.name}: expected 64 hexadecimal digits, got {self.sha256!r}")
        ends = [end for each in self.ranges or () for end in (each.start, each.stop)]
        sound = type(self.of) is int and 0 <= self.of < MOST_COUNTED
        if not sound or ends != sorted(ends) or any(not 0 <= end <= self.of for end in ends):
            raise CheckpointError(f"shard {self.name}: expected ascending ranges of {self.of} elements")

    @classmethod
    def from_json(cls, fields: Any) -> "ShardFile":
        """From JSON, checked."""
        try:
            shard = cls(fields["name"], fields["size"], fields["sha256"])
            if "ranges" not in fields:
                return shard
            return replace(shard, ranges=tuple(range(start, stop) for start, stop in fields["ranges"]), of=fields["of"])
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise CheckpointError(
                f"shard: expected name, size and sha256, got {str(fields)[:80]} ({error!r})"
            ) from None

    def as_json(self) -> dict[str, JSON]:
        """As files have it."""
        fields: dict[str, JSON] = {"name": self.name, "size": self.size, "sha256": self.sha256}
        if self.ranges is not None:
            fields |= {"ranges": [[each.start, each.stop] for each in self.ranges], "of": self.of}
        return fields


def write(
    folder: Path,
    name: str,
    tensors: dict[str, np.ndarray[Any, Any]],
    facts: str,
    ranges: Sequence[range] | None = None,
    of: int = 0,
) -> ShardFile:
    """Writes `folder/name.safetensors`, then `folder/name.json`, which says that the first is on the disk.

    Args:
        folder: must be there.
        name: the shard's.
        tensors: C-contiguous.
        facts: JSON text.
        ranges: as `ShardFile`.
        of: the same.

    Raises:
        OSError: a full disk, a folder that has gone, ...; neither file is there then.
        CheckpointError: `header` refuses it, or what was written cannot be read.
    """
    digest = hashlib.sha256()

    def hashed() -> Iterator[bytes | memoryview]:
        for chunk in _chunks(tensors, facts):
            digest.update(chunk)
            yield chunk

    path = folder / (name + SUFFIX)
    size = write_whole(path, hashed())
    shard = ShardFile(name, size, digest.hexdigest(), None if ranges is None else tuple(ranges), of)
    _open(path, lambda file: None)
    sync_folder(folder)
    text = json.dumps({"format": _FORMAT, **shard.as_json()}, indent=1)
    write_whole(folder / f"{name}.json", [text.encode() + b"\n"])  # from here on the folder may be renamed
    return shard


def written(folder: Path, name: str) -> ShardFile | None:
    """What the JSON file says of a shard; None while it is not there.

    Raises:
        CheckpointError: it is damaged or of another version.
    """
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    fields = parse_object(read_text(path), str(path))
    shard = ShardFile.from_json(fields)
    if fields.get("format") != _FORMAT or shard.name != name:
        raise CheckpointError(f"{path}: expected {_FORMAT!r} of {name}, got {fields.get('format')!r} of {shard.name}")
    return shard


def verify(folder: Path, shard: ShardFile) -> dict[str, JSON]:
    """Reads a shard's file, and compares size and SHA-256.

    Returns:
        Its facts: `read` can read it.

    Raises:
        CheckpointError: missing, truncated, damaged, no safetensors file of psgd, or its weights are not numbers.
    """
    path = folder / (shard.name + SUFFIX)
    with _sized(path, shard) as file:
        found = hashlib.sha256()
        while data := file.read(_CHUNK):
            found.update(data)
    if found.hexdigest() != shard.sha256:
        raise CheckpointError(f"{path}: damaged: its SHA-256 is {found.hexdigest()}, the manifest says {shard.sha256}")
    weights, facts = _open(path, lambda file: {name: file.get_tensor(name) for name in file.keys() if name in WEIGHTS})  # noqa: SIM118
    if not State(weights).finite:
        raise CheckpointError(f"{path}: NaN or infinity in the parameters")
    return facts


def read(folder: Path, shard: ShardFile, names: Collection[str] | None = None) -> State:
    """Reads a shard; the SHA-256 is `verify`'s.

    Args:
        folder: of the checkpoint.
        shard: in it.
        names: of the tensors; None: all.

    Returns:
        Tensors of their own memory.

    Raises:
        CheckpointError: missing, truncated, no safetensors file of psgd.
    """
    path = folder / (shard.name + SUFFIX)
    _sized(path, shard).close()
    return State(
        *_open(path, lambda file: {name: file.get_tensor(name) for name in (file.keys() if names is None else names)})
    )


def outline(folder: Path, shard: ShardFile) -> State:
    """A shard's facts, and the shape and type of each tensor, without their elements.

    Raises:
        CheckpointError: as `read`.
    """
    path = folder / (shard.name + SUFFIX)
    _sized(path, shard).close()

    def shapes(file: Any) -> dict[str, np.ndarray[Any, Any]]:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        kinds = {theirs: ours for ours, theirs in TYPES.items()}
        return {
            name: np.broadcast_to(np.zeros((), kinds[each.get_dtype()]), each.get_shape())
            for name, each in slices.items()
        }

    return State(*_open(path, shapes))


def elements(folder: Path, shard: ShardFile, name: str, start: int, stop: int) -> np.ndarray[Any, Any]:
    """Elements `start` to `stop` of a vector; the others are not read.

    Raises:
        CheckpointError: as `read`, or there is no such vector.
    """
    path = folder / (shard.name + SUFFIX)
    found: np.ndarray[Any, Any] = _open(path, lambda file: file.get_slice(name)[start:stop])[0]
    return found


def _open(path: Path, take: Callable[[Any], Any]) -> tuple[Any, dict[str, JSON]]:
    """What `take` takes out of a file, and the facts in its header."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            text = (file.metadata() or {}).get("psgd")
            taken = take(file)
    except (SafetensorError, OSError, TypeError, ValueError, AttributeError, KeyError) as error:
        raise CheckpointError(f"{path}: not a valid safetensors file: {error}") from None
    if text is None:
        raise CheckpointError(f"{path}: not written by psgd: it has no facts in its metadata")
    return taken, parse_object(text, str(path))


def _sized(path: Path, shard: ShardFile) -> IO[bytes]:
    file = open_plain(path)
    size = file.seek(0, 2)
    file.seek(0)
    if size != shard.size:
        file.close()
        raise CheckpointError(f"{path}: truncated or another file: {size} bytes, the manifest says {shard.size}")
    return file


def header(tensors: Mapping[str, np.ndarray[Any, Any]], facts: str) -> bytes:
    """The head of a file: 8 bytes of its length, then JSON.

    Raises:
        CheckpointError: a type that the format does not have, a name that is no text in UTF-8, or more than what the
            safetensors library reads.
    """
    fields: dict[str, Any] = {"__metadata__": {"psgd": facts}}
    at = 0
    for name, tensor in _ordered(tensors):
        if tensor.dtype not in TYPES:
            raise CheckpointError(f"tensor {name}: expected one of {', '.join(map(str, TYPES))}, got {tensor.dtype}")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise CheckpointError(f"tensor {name!r}: expected a name that UTF-8 can encode") from None
        stop = at + tensor.nbytes
        fields[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, stop]}
        at = stop
    text = json.dumps(fields).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MOST_HEADER_BYTES:
        raise CheckpointError(
            f"names, shapes and facts: expected at most {MOST_HEADER_BYTES:,} bytes of JSON, got {len(text):,}; "
            "save long texts and lists as arrays, of np.uint8 for a text"
        )
    return len(text).to_bytes(8, "little") + text


def _ordered(tensors: Mapping[str, np.ndarray[Any, Any]]) -> list[tuple[str, np.ndarray[Any, Any]]]:
    """Widest items first, so that every tensor lies aligned."""
    return sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))


def _chunks(tensors: Mapping[str, np.ndarray[Any, Any]], facts: str) -> Iterator[bytes | memoryview]:
    """The file's bytes: the header, then each tensor's."""
    yield header(tensors, facts)
    for _, tensor in _ordered(tensors):
        data = tensor.reshape(-1).view(np.uint8).data if tensor.size else memoryview(b"")
        for start in range(0, len(data), _CHUNK):
            yield data[start : start + _CHUNK]
