"""Damaged files of every format that psgd reads: each is read or refused with a psgd.Error, and nothing else happens.

    python tests/support/harness/damage.py DIRECTORY SECONDS [SEED]

Each format has its time. A case is a sound file with something cut, flipped, put in, or from another version. On a
finding the file stays in the directory, and the exit code is not 0; so it does where a case takes too long (5 s) or too
much memory.
"""

import gzip
import io
import json
import math
import os
import pickle
import resource
import signal
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

import numpy as np

from psgd.checkpoint import folder, manifest, shards
from psgd.checkpoint.manifest import Manifest
from psgd.collectives.dispatch import tuning
from psgd.data import sources
from psgd.data.normalization import validate
from psgd.kernels.errors import Error
from psgd.launch import options
from psgd.launch.plot import command
from psgd.launch.plot import log as plot_log
from psgd.nn.layout import Layout
from psgd.server.record_replay import load

MEMORY = 1 << 30  # on top of what the program has to begin with
LONGEST_S = 5
ODD = (0, -1, 1, 2**31, 2**63, 2**64, 10**30, 1e308, math.inf, math.nan, None, True, "", "x", "../x", [], {}, [[[]]])
WORDS = (
    b"\xff" * 8,
    b"\0" * 8,
    b"\x80",
    b"-",
    b"9" * 20,
    b"1e999",
    b"NaN",
    b"null",
    b"[" * 5000,
    b"\n",
    b'"',
    b"\\ud800",
)


class Boom:
    """What a pickle could do: the file that it makes must never be there."""

    def __reduce__(self):
        return (open, ("executed", "w"))


# Each format: its name, how sound files are made in a folder, and how one is read, wholly.


def idx(make):
    x, y = np.arange(7 * 4 * 4, dtype=np.uint8), np.arange(7, dtype=np.uint8) % 3
    images = b"\0\0\x08\x03" + np.array([7, 4, 4], ">u4").tobytes() + x.tobytes()
    labels = b"\0\0\x08\x01" + np.array([7], ">u4").tobytes() + y.tobytes()
    floats = b"\0\0\x0e\x02" + np.array([7, 4], ">u4").tobytes() + np.arange(28.0).astype(">f8").tobytes()
    for part in ("train", "t10k"):
        make(f"{part}-images-idx3-ubyte", images, floats)
        make(f"{part}-labels-idx1-ubyte.gz", gzip.compress(labels, mtime=0))


def npy(make):
    x, y = np.arange(28, dtype=np.float32).reshape(7, 4), np.arange(7) % 3
    fortran, old, objects = _npy(np.asfortranarray(x)), _npy(x, (2, 0)), _npy(np.array([Boom()] * 7, object))
    make("x_train.npy", _npy(x), fortran, old, objects)
    make("y_train.npy", _npy(y), _npy(y.astype(np.uint8)))


def npz(make):
    x, y = np.arange(28, dtype=np.float32).reshape(7, 4), np.arange(7) % 3
    files = []
    for save in (np.savez, np.savez_compressed):
        for first in (x, np.array([Boom()] * 7, object), np.zeros((7, 20_000))):
            out = io.BytesIO()
            save(out, x_train=first, y_train=y)
            files.append(out.getvalue())
    make("data.npz", *files)


def toml(make):
    make(
        "run.toml", b'strategy = "ssp"\nlr = 0.1\nworkers = 4\nscale-lr = true\nlog = "x.jsonl"\ninject = "slow:0:2"\n'
    )


def log(make):
    lines = [
        {"event": "start", "workers": 2, "strategy": "sync"},
        {"event": "progress", "time": 0.1, "samples": 10, "epoch": 0, "loss": 1.5, "lr": 0.1},
        {"event": "eval", "time": 0.2, "samples": 20, "epoch": 1, "accuracy": 0.5, "loss": None},
        {"event": "waits", "rows": [[0, 1, 0.05, 0.06]], "stopped": 0.2},
        {
            "event": "end",
            "staleness": {"histogram": {"0": 3, "2": 1}},
            "waited_seconds": [0, 1],
            "computed_seconds": [1, 0],
        },
    ]
    make("run.jsonl", b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def order(make):
    lines = [
        {"format": "psgd order 1", "run": {"workers": 2}},
        {"apply": [[0, 1, 1.0]], "opens": True, "release": []},
        {"apply": [[1, 1, 0.5]], "save": 1, "release": [0, 1]},
    ]
    make("order", b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def table(make):
    entry = {
        "collective": "Allreduce",
        "ranks": 1,
        "nodes": 1,
        "limits": [[4096, "ring"], [None, "recursive_doubling"]],
    }
    make("tuning.json", json.dumps({"format": 1, "entries": [entry]}).encode())


def layout(make):
    make("layout.json", Layout([("linear1.weight", (7, 3)), ("linear1.bias", (3,))]).to_json().encode())


def checkpoint(make):
    part = Path("made.part")
    part.mkdir()
    tensors = {"params": np.arange(99, dtype=np.float32), "clock": np.array(3), "flags": np.ones((2, 3), bool)}
    written = shards.write(part, "server-0", tensors, json.dumps({"range": [0, 99, 99], "cut": ["params"]}))
    told = Manifest(5, 9, 7, 0.5, {"a": 1}, layout=Layout([("w", (99,))]))
    manifest.write(part, told, [written])
    for path in part.iterdir():
        # Without a checksum, as earlier versions wrote it, what is changed gets further.
        plain = manifest.as_json(replace(told, shards=(written,), format=manifest.UNSEALED))
        more = [json.dumps(plain).encode()] if path.name == manifest.FILE else []
        make(path.name, path.read_bytes(), *more)
    (Path(".") / "made.part" / "server-0.safetensors").unlink()


def _npy(array, version=(1, 0)):
    out = io.BytesIO()
    if array.dtype == object:
        text = {"descr": "|O", "fortran_order": False, "shape": array.shape}
        np.lib.format.write_array_header_1_0(out, text)
        out.write(pickle.dumps(array))
    else:
        np.lib.format.write_array(out, array, version, allow_pickle=False)
    return out.getvalue()


def read_dataset(path):
    validate(sources.load(path))  # reads all values


def read_table(path):
    try:
        tuning.read(path / "tuning.json")
    except ValueError as error:  # what `tuning.load` tells all ranks as a UsageError
        raise Error(str(error)) from None


def read_picture(path):
    """What psgd plot makes of a log, timeline and all."""
    run = plot_log.read(path / "run.jsonl")
    if run.workers < 100:  # more is only slow
        command.draw([run], path / "run.svg", [run] if run.waits else [])


def read_checkpoint(path):
    """The shard whatever its checksum says, then the checkpoint as a run looks at it."""
    failed = None
    try:
        size = (path / "server-0.safetensors").stat().st_size
        shards.read(path, shards.ShardFile("server-0", size, 64 * "0"))
    except Error as error:
        failed = error
    try:
        shards.written(path, "server-0")
    except Error as error:
        failed = error
    ready = path.parent / "step-000000005"
    path.rename(ready)
    try:
        for found in folder.complete(path.parent, lambda line: None):
            for name in found.manifest.names():
                found.state(name)
    finally:
        ready.rename(path)
    if failed:
        raise failed


FORMATS = {
    "idx": (idx, read_dataset),
    "npy": (npy, read_dataset),
    "npz": (npz, lambda path: read_dataset(path / "data.npz")),
    "toml": (toml, lambda path: options.build({}, str(path / "run.toml"))),
    "log": (log, lambda path: plot_log.read(path / "run.jsonl")),
    "picture": (log, read_picture),
    "order": (order, lambda path: load(path / "order", {"workers": 2})),
    "table": (table, read_table),
    "layout": (layout, lambda path: Layout.from_json((path / "layout.json").read_bytes())),
    "checkpoint": (checkpoint, read_checkpoint),
}


def damaged(rng, data):
    """A copy with one to three things wrong."""
    if rng.random() < 0.4 and (changed := _odd_json(rng, data)) is not None:
        return changed
    data = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(len(data) + 1))
        if rng.random() < 0.3:
            at = min(at, int(rng.integers(1, 128)))  # headers come first
        how, span = rng.integers(7), int(rng.integers(1, 12))
        if how == 0:
            del data[at:]
        elif how == 1:
            del data[at : at + span]
        elif how == 2:
            data[at : at + span] = rng.bytes(span)
        elif how == 3 and at < len(data):
            data[at] ^= 1 << int(rng.integers(8))
        elif how == 4:
            word = WORDS[rng.integers(len(WORDS))]
            data[at : at + len(word) * int(rng.integers(2))] = word
        elif how == 5:
            data[at:at] = data[max(0, at - span) : at] * int(rng.integers(1, 50))
        else:
            digits = [place for place in range(len(data)) if 48 <= data[place] < 58]
            if digits:
                data[digits[rng.integers(len(digits))]] = 48 + int(rng.integers(10))
    return bytes(data)


def _odd_json(rng, data):
    """One value of JSON text (one object, or one a line) replaced by an odd one; None where it is no JSON."""
    try:
        lines = data.decode().splitlines() if data[:1] == b"{" and b"}\n{" in data else [data.decode()]
        values = [json.loads(line) for line in lines]
    except ValueError:
        return None
    place = int(rng.integers(len(values)))
    values[place] = replaced(rng, values[place])
    return "\n".join(json.dumps(value) for value in values).encode()


def replaced(rng, value):
    """The value, changed in place, with one thing in it odd or missing; or an odd one."""
    odd = ODD[rng.integers(len(ODD))]
    if not isinstance(value, (dict, list)) or not value or rng.random() < 0.15:
        return odd
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = keys[rng.integers(len(keys))]
    if rng.random() < 0.15:
        del value[key]
    else:
        value[key] = replaced(rng, value[key])
    return value


class TooLongError(BaseException):
    """A case that may never end."""


def _alarm(number, frame):
    raise TooLongError


def cases(name, seed, until):
    """Runs cases of a format until then; returns how many, and how many were refused."""
    make, read = FORMATS[name]
    base, sound = Path(name), {}
    base.mkdir()
    made = {}

    def keep(file, *variants):
        made[file] = variants

    make(keep)
    for file, variants in made.items():
        (base / file).write_bytes(variants[0])
        sound[file] = variants
    read(base)  # what is sound is read
    done = refused = 0
    while time.monotonic() < until:
        rng = np.random.default_rng([seed, done, *name.encode()])
        file = list(sound)[rng.integers(len(sound))]
        variants = sound[file]
        (base / file).write_bytes(damaged(rng, variants[rng.integers(len(variants))]))
        signal.setitimer(signal.ITIMER_REAL, LONGEST_S if name != "picture" else 20 * LONGEST_S)
        try:
            read(base)
        except Error as error:
            refused += bool(str(error))
        except BaseException as error:
            signal.setitimer(signal.ITIMER_REAL, 0)
            traceback.print_exc(limit=-6)
            raise SystemExit(f"{name}, case {done} of seed {seed}, {base / file}: {type(error).__name__}") from None
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert not Path("executed").exists(), f"{name}, case {done}: a pickle was executed"
        (base / file).write_bytes(variants[0])
        done += 1
    return done, refused


def main(directory, seconds, seed):
    """Runs all formats in a folder; prints a line for each."""
    os.chdir(directory)
    signal.signal(signal.SIGALRM, _alarm)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    names = [name for name in FORMATS if name != "picture" or seconds > 60]  # a picture takes a second
    for name in names:
        done, refused = cases(name, seed, time.monotonic() + seconds / len(names))
        print(f"{name}: {done} cases, {refused} refused", flush=True)
        assert done > 5 and refused


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
