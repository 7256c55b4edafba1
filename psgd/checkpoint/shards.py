"""One rank's state as a safetensors file, with a small JSON file beside it that says its size and SHA-256.

The format (https://huggingface.co/docs/safetensors): 8 bytes, the length of a JSON header; the header, which names each
tensor's type, shape and bytes; then the bytes. It is written here, straight from the arrays in one pass that also
hashes and without the interpreter's lock; it is read by the safetensors library.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from psgd.checkpoint.files import open_plain, parse_object, read_json, sync_folder, write_json, write_whole
from psgd.checkpoint.state import State
from psgd.kernels.errors import CheckpointError

SUFFIX = ".safetensors"
NAME = re.compile(r"[a-z][a-z0-9]{0,31}(-\d{1,9})?")
_FORMAT = "psgd shard 1"
_TYPES = {
    np.dtype(ours): theirs
    for ours, theirs in {
        "<f8": "F64", "<f4": "F32", "<f2": "F16", "<i8": "I64", "<i4": "I32", "<i2": "I16", "i1": "I8",
        "<u8": "U64", "<u4": "U32", "<u2": "U16", "u1": "U8", "?": "BOOL",
    }.items()
}  # fmt: skip
_CHUNK = 4 << 20


@dataclass(frozen=True)
class ShardFile:
    """What a manifest knows of one rank's file.

    Attributes:
        name: `server-0`, `worker-3`, ...
        size: bytes.
        sha256: hexadecimal.
    """

    name: str
    size: int
    sha256: str

    def __post_init__(self) -> None:
        """Raises CheckpointError where a field cannot be: these come from files."""
        good = isinstance(self.name, str) and NAME.fullmatch(self.name)
        if not good or type(self.size) is not int or self.size < 0:
            raise CheckpointError(
                f"shard: expected a name such as server-0 and a size, got {self.name!r}, {self.size!r}"
            )
        if not isinstance(self.sha256, str) or not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise CheckpointError(f"shard {self.name}: expected 64 hexadecimal digits, got {self.sha256!r}")

    @classmethod
    def of(cls, fields: Any) -> "ShardFile":
        """From JSON, checked."""
        try:
            return cls(fields["name"], fields["size"], fields["sha256"])
        except (KeyError, TypeError, IndexError) as error:
            raise CheckpointError(
                f"shard: expected name, size and sha256, got {str(fields)[:80]} ({error!r})"
            ) from None


def write(folder: Path, name: str, tensors: dict[str, np.ndarray[Any, Any]], facts: str) -> ShardFile:
    """Writes `folder/name.safetensors`, then `folder/name.json`, which says that the first is on the disk.

    Args:
        folder: must be there.
        name: the shard's.
        tensors: C-contiguous.
        facts: JSON text.

    Raises:
        OSError: a full disk, a folder that has gone, ...; neither file is there then.
    """
    digest = hashlib.sha256()

    def hashed() -> Iterator[bytes | memoryview]:
        for chunk in _chunks(tensors, facts):
            digest.update(chunk)
            yield chunk

    size = write_whole(folder / (name + SUFFIX), hashed())
    shard = ShardFile(name, size, digest.hexdigest())
    sync_folder(folder)
    write_json(folder / f"{name}.json", {"format": _FORMAT, **asdict(shard)})  # from here on the folder may be renamed
    return shard


def written(folder: Path, name: str) -> ShardFile | None:
    """What the JSON file says of a shard; None while it is not there.

    Raises:
        CheckpointError: it is damaged or of another version.
    """
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    fields = read_json(path)
    shard = ShardFile.of(fields)
    if fields.get("format") != _FORMAT or shard.name != name:
        raise CheckpointError(f"{path}: expected {_FORMAT!r} of {name}, got {fields.get('format')!r} of {shard.name}")
    return shard


def verify(folder: Path, shard: ShardFile) -> None:
    """Reads a shard's file and compares size and SHA-256.

    Raises:
        CheckpointError: missing, truncated, damaged.
    """
    path = folder / (shard.name + SUFFIX)
    with _sized(path, shard) as file:
        found = hashlib.sha256()
        while data := file.read(_CHUNK):
            found.update(data)
    if found.hexdigest() != shard.sha256:
        raise CheckpointError(f"{path}: damaged: its SHA-256 is {found.hexdigest()}, the manifest says {shard.sha256}")


def read(folder: Path, shard: ShardFile) -> State:
    """Reads a shard; the SHA-256 is `verify`'s.

    Returns:
        Tensors of their own memory.

    Raises:
        CheckpointError: missing, truncated, no safetensors file of psgd.
    """
    from safetensors import SafetensorError, safe_open

    path = folder / (shard.name + SUFFIX)
    _sized(path, shard).close()
    tensors = {}
    try:
        with safe_open(path, framework="np") as file:
            text = (file.metadata() or {}).get("psgd")
            names = file.keys()
            for name in names:
                tensors[name] = file.get_tensor(name)
    except (SafetensorError, OSError, TypeError, ValueError, AttributeError, KeyError) as error:
        raise CheckpointError(f"{path}: no sound safetensors file: {error}") from None
    if text is None:
        raise CheckpointError(f"{path}: not written by psgd: it has no facts in its metadata")
    return State(tensors, parse_object(text, str(path)))


def _sized(path: Path, shard: ShardFile) -> IO[bytes]:
    file = open_plain(path)
    size = file.seek(0, 2)
    file.seek(0)
    if size != shard.size:
        file.close()
        raise CheckpointError(f"{path}: truncated or another file: {size} bytes, the manifest says {shard.size}")
    return file


def _chunks(tensors: dict[str, np.ndarray[Any, Any]], facts: str) -> Iterator[bytes | memoryview]:
    """The file's bytes: the header, then each tensor's, widest items first so that every one lies aligned."""
    header: dict[str, Any] = {"__metadata__": {"psgd": facts}}
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))
    at = 0
    for name, tensor in ordered:
        if tensor.dtype not in _TYPES:
            raise CheckpointError(f"tensor {name}: expected one of {', '.join(map(str, _TYPES))}, got {tensor.dtype}")
        header[name] = {
            "dtype": _TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, tensor in ordered:
        data = tensor.reshape(-1).view(np.uint8).data if tensor.size else memoryview(b"")
        for start in range(0, len(data), _CHUNK):
            yield data[start : start + _CHUNK]
