"""From a name or a path to a dataset: which files belong together, and where they are looked for."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from psgd.data import idx, npy, text
from psgd.data.dataset import Dataset, Split, assemble, split
from psgd.kernels.errors import DataError

ACCEPTED = (
    "'digits' or 'genesis' (in the package), 'fashion-mnist', a folder of IDX files under MNIST's names, an .npz with "
    "x_train, y_train (and x_test, y_test) or x, y, a folder with those arrays as .npy files, or a text, FILE.txt"
)
_FILES = Path(__file__).resolve().parent / "files"
_SYSTEM = Path("/usr/share/datasets")
_TRAIN, _TEST, _WHOLE = ("x_train", "y_train"), ("x_test", "y_test"), ("x", "y")
_KEYS = (*_TRAIN, *_TEST, *_WHOLE)
_PARTS = {"train": "train", "training": "train", "tr": "train", "test": "test", "testing": "test", "te": "test"}
_PARTS |= dict.fromkeys(("val", "valid", "validation", "dev"), "val")
_WORDS = {
    "x": {"x", "xs", "image", "images", "data", "samples", "features", "inputs", "imgs"},
    "y": {"y", "ys", "label", "labels", "target", "targets", "classes", "outputs"},
}


def load(name_or_path: str | os.PathLike[str], context: int = text.CONTEXT) -> Dataset:
    """Opens a dataset and checks its structure: files, headers, sizes, counts, shapes and dtypes.

    Names: `digits`, the 1,797 UCI digits of 8 x 8 (1,497 train; every sixth, 300 in all, tests), and
    `fashion-mnist`, looked for in `$PSGD_DATA/fashion-mnist`, /usr/share/datasets/fashion-mnist and
    ./fashion-mnist. Anything else is a path: a folder of IDX files (`train-images-idx3-ubyte` and so on, or
    `train-images.idx3-ubyte`, with or without `.gz`), an `.npz`, or a folder of `.npy` files. Where no test
    part is given, the last sixth of the samples (rounded up) is held out.

    A file whose name ends in .txt is a text, and `genesis` is one (the first book of the King James Bible, 200 kB):
    each sample is `context` bytes of it, the label of each byte the one that follows it.

    Plain IDX files of bytes and `.npy` files are mapped, so that a rank reads its own rows only; gzip and
    `.npz` are read whole. Values are not looked at: see `psgd.data.normalization.validate`. Nothing is
    unpickled.

    Args:
        name_or_path: as above.
        context: tokens of a sample of text.

    Raises:
        DataError: one message that names the file, what was expected, and what was found.
    """
    name = os.fspath(name_or_path)
    if name == "digits":
        images, labels = (_FILES / f"digits-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
        return assemble(name, _idx_split(images, labels), classes=10)
    if name == "fashion-mnist":
        return _idx_folder(name, _find(name), classes=10)
    path = _FILES / "genesis.txt" if name == "genesis" else Path(name).expanduser()
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError) as error:
        raise DataError(
            f"dataset {name!r}: {getattr(error, 'strerror', None) or error}; expected {ACCEPTED}"
        ) from error
    if is_file:
        return _one_file(name, path, context)
    if not is_folder:
        raise DataError(f"dataset {name!r}: neither a known name nor an existing path; expected {ACCEPTED}")
    if any(_idx_file(path, part, kind) for part in ("train", "t10k") for kind in ("images", "labels")):
        return _idx_folder(name, path)
    return _numpy_folder(name, path)


def _one_file(name: str, path: Path, context: int) -> Dataset:
    if path.suffix.lower() == ".npz":
        return _archive(name, path)
    if path.suffix.lower() == ".txt":
        return text.read(name, path, context)
    raise DataError(f"dataset {path}: one file is not a dataset unless it is an .npz or a .txt; expected {ACCEPTED}")


def _find(name: str) -> Path:
    own = os.environ.get("PSGD_DATA")
    places = [*([Path(own) / name] if own else []), _SYSTEM / name, Path(name)]
    for place in places:
        if place.is_dir():
            return place
    raise DataError(
        f"dataset {name!r}: not found in {', '.join(map(str, places))}; "
        f"'apt install dataset-{name}', or set PSGD_DATA to the folder that holds a folder {name}"
    )


def _idx_file(folder: Path, part: str, kind: str) -> Path | None:
    """Finds one of MNIST's files; a plain file, which can be mapped, is preferred to gzip."""
    suffix = {"images": "idx3-ubyte", "labels": "idx1-ubyte"}[kind]
    for end in ("", ".gz"):
        for mark in "-.":
            path = folder / f"{part}-{kind}{mark}{suffix}{end}"
            if path.is_file():
                return path
    return None


def _idx_folder(name: str, folder: Path, classes: int | None = None) -> Dataset:
    train = _idx_pair(folder, "train")
    if train is None:
        raise DataError(f"{folder}: train-images-idx3-ubyte (or its .gz) and its labels are missing")
    return assemble(name, train, _idx_pair(folder, "t10k"), classes)


def _idx_pair(folder: Path, part: str) -> Split | None:
    images, labels = _idx_file(folder, part, "images"), _idx_file(folder, part, "labels")
    if images is None and labels is None:
        return None
    if images is None:
        raise DataError(f"{folder}: {part}-images-idx3-ubyte (or its .gz) is missing beside its labels")
    if labels is None:
        raise DataError(f"{folder}: {part}-labels-idx1-ubyte (or its .gz) is missing beside its images")
    return _idx_split(images, labels)


def _idx_split(images: Path, labels: Path) -> Split:
    return split(idx.read(images), idx.read(labels), str(images), str(labels))


def _archive(name: str, path: Path) -> Dataset:
    arrays = npy.read_archive(path, _KEYS)

    def fix(renamed: dict[str, str]) -> str:
        chosen = ", ".join(f"{key}=d[{old!r}]" for key, old in renamed.items())
        return f"d = numpy.load({path.name!r}); numpy.savez({path.name!r}, {chosen})"

    def flat(old: str) -> bool:
        return npy.dimensions(path, old) == 1

    found = npy.archive_names(path)
    return _numpy_pairs(name, path, found, arrays.__getitem__, lambda key: f"{path} ({key})", fix, flat)


def _numpy_folder(name: str, folder: Path) -> Dataset:
    files = {key: folder / f"{key}.npy" for key in _KEYS if (folder / f"{key}.npy").is_file()}
    found = sorted(file.stem for file in folder.glob("*.npy"))
    if not found:
        here = sorted(file.name for file in folder.iterdir())
        shown = ", ".join(here[:8]) + (", ..." if len(here) > 8 else "")
        raise DataError(
            f"{folder}: {f'contains no dataset, but {shown}' if shown else 'is empty'}; expected {ACCEPTED}"
        )

    def fix(renamed: dict[str, str]) -> str:
        return "; ".join(f"mv {old}.npy {key}.npy" for key, old in renamed.items() if key != old)

    def flat(old: str) -> bool:
        return npy.dimensions(folder / f"{old}.npy") == 1

    return _numpy_pairs(name, folder, found, lambda key: npy.read(files[key]), lambda key: str(files[key]), fix, flat)


def _renamed(found: Sequence[str], flat: Callable[[str], bool]) -> dict[str, str]:
    """What the arrays should be called, each with its name as it is; empty where that cannot be guessed.

    By words that others use: `X_train`, `trainImages`, `labels`, `test_y`, `x_val`. Of two arrays the other one, or by
    their dimensions.

    Args:
        found: the names that there are.
        flat: tells of one whether it has one dimension, as labels have.
    """
    guess: dict[str, str] = {}
    for old in found:
        words = re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", old).lower())
        words += [each for word in words if word[1:] in _PARTS for each in (word[0], word[1:])]  # xtrain
        part = next((f"_{_PARTS[word]}" for word in words if word in _PARTS), "")
        kind = next((kind for kind, known in _WORDS.items() if known.intersection(words)), None)
        if kind is not None:
            guess.setdefault(kind + part, old)
    for kind in "xy":
        guess.setdefault(f"{kind}_test", guess.pop(f"{kind}_val", ""))
    guess = {key: old for key, old in guess.items() if old}
    if len(found) == 2 and not any(guess.keys() >= set(pair) for pair in (_TRAIN, _WHOLE)):
        guess = _of_two(found, set(guess.values()), guess, flat)
    pairs = [pair for pair in (_TRAIN, _WHOLE) if guess.keys() >= set(pair)][:1]
    pairs += [_TEST] if pairs and guess.keys() >= set(_TEST) else []
    return {key: guess[key] for pair in pairs for key in pair}


def _of_two(
    found: Sequence[str], known: set[str], guess: dict[str, str], flat: Callable[[str], bool]
) -> dict[str, str]:
    """Of two arrays: one whose name says something makes the other one the other; else dimensions do, or the order."""
    if len(known) == 1:
        key, old = next(iter(guess.items()))
        rest = next(name for name in found if name != old)
        return {"x": old, "y": rest} if key[0] == "x" else {"x": rest, "y": old}
    if not known:
        return dict(zip(_WHOLE, sorted(found, key=flat) if sum(map(flat, found)) == 1 else found, strict=True))
    kinds = {key[0]: old for key, old in guess.items()}
    return kinds if len(kinds) == 2 and not guess.keys() & set(_TEST) else guess


def _numpy_pairs(
    name: str,
    where: Path,
    found: Sequence[str],
    read: Callable[[str], NDArray[Any]],
    place: Callable[[str], str],
    fix: Callable[[dict[str, str]], str],
    flat: Callable[[str], bool],
) -> Dataset:
    """Joins those of x_train, y_train, x_test, y_test, x, y that are there.

    Args:
        name: of the dataset.
        where: it is.
        found: names of all arrays that are there.
        read: gives one of them.
        place: says where it is.
        fix: the line that gives arrays their names, from what they are called now.
        flat: tells whether an array has one dimension.
    """
    present = set(found)
    source = _TRAIN if present.issuperset(_TRAIN) else _WHOLE
    incomplete = [key for pair in (_TRAIN, _TEST) if len(present & set(pair)) == 1 for key in pair]
    if incomplete or not present.issuperset(source):
        renamed = _renamed(found, flat)
        line = f": {fix(renamed)}" if renamed else ""
        missing = next((key for key in incomplete if key not in present), None)
        what, only = (f"{missing} is missing", "") if missing else ("expected x_train and y_train, or x and y", "only ")
        shown = f"found {only}{', '.join(sorted(found))}" if found else "found no array"
        raise DataError(f"{where}: {what}; {shown}{line}")

    def part(x: str, y: str) -> Split:
        return split(read(x), read(y), place(x), place(y))

    return assemble(name, part(*source), part(*_TEST) if present.issuperset(_TEST) else None)
