"""The options of `psgd train` in a batch script, as words of a command line."""

from collections.abc import Sequence

from psgd.kernels.errors import UsageError
from psgd.launch.slurm.templates import KINDS, TRIALS
from psgd.parallel import axes
from psgd.runtime.ulfm import options as ulfm
from psgd.user import reference

_FILES = ("--model", "--dataset")


def training(kind: str, train: Sequence[str] | None, file: Sequence[str] = ()) -> list[str]:
    """Returns a script's options: those that make the kind, and `train` or the example.

    Args:
        kind: a name in `KINDS`.
        train: what the user gives; None: the example.
        file: what a file of options says. What it or `train` names does not make the kind.
    """
    chosen = KINDS[kind]
    words = list(chosen.example if train is None else train)
    named = names([*file, *words])
    return absolute([word for pair in chosen.always if pair[0] not in named for word in pair] + words)


def trials(kind: str, train: Sequence[str] | None, given: Sequence[str]) -> list[str]:
    """Returns the options of each job of an array: those given, or the built-in ones without what `train` names.

    Raises:
        UsageError: nothing is left to try.
    """
    if kind != "array":
        return []
    if given:
        return [" ".join(absolute(text.split())) for text in given]
    named, left = names(train or ()), dict[str, None]()
    for text in TRIALS:
        words = text.split()
        pairs = zip(words[::2], words[1::2], strict=True)
        left[" ".join(word for pair in pairs if pair[0] not in named for word in pair)] = None
    if "" in left:
        raise UsageError(
            "kind array: --lr and --batch-size are both given, so nothing is left to try; expected --trial"
        )
    return list(left)


def absolute(words: Sequence[str]) -> list[str]:
    """Returns the words with absolute paths of the user's files (`--model FILE.py:make`): jobs may start elsewhere."""
    done = []
    for before, word in zip(["", *words], words, strict=False):
        flag, equals, text = word.partition("=")
        if equals and flag in _FILES:
            done.append(f"{flag}={reference.absolute(text)}")
        else:
            done.append(reference.absolute(word) if before in _FILES else word)
    return done


def names(words: Sequence[str]) -> set[str]:
    """Returns the flags among the words."""
    return {word.partition("=")[0] for word in words if word.startswith("--")}


def value(words: Sequence[str], flag: str) -> str | None:
    """Returns the last value of a flag, given as `--flag value` or `--flag=value`; None where it is not there."""
    found = None
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if word == flag:
            found = following
        elif word.startswith(flag + "="):
            found = word[len(flag) + 1 :]
    return found


def number(words: Sequence[str], flag: str, given: int | None) -> int | None:
    """Returns a number of ranks: from the words, or `given`; None where neither has it.

    Raises:
        UsageError: no number, or two different ones.
    """
    text = value(words, flag)
    if text is None:
        return given
    if not text.isdecimal():
        raise UsageError(f"{flag}: expected a whole number, got {text!r}")
    if given not in (None, int(text)):
        raise UsageError(f"{flag}: {given} before --, {text} after it; give it once")
    return int(text)


def ranks_of_a_worker(words: Sequence[str]) -> int:
    """How many ranks hold one copy of the model: those of `--mesh`, without its copies. Raises UsageError."""
    mesh = value(words, "--mesh")
    return 1 if mesh is None else axes.ranks_of_a_copy(axes.parse(mesh))


def copies(words: Sequence[str]) -> int | None:
    """How many workers `--mesh` says there are, by its axis `data`; None where it does not. Raises UsageError."""
    mesh = value(words, "--mesh")
    return None if mesh is None else axes.parse(mesh).get("data")


def standing_by(words: Sequence[str]) -> tuple[int, int | None]:
    """How many ranks stand by at first, and with how many of workers `--grow` begins; None without it.

    Raises:
        UsageError: no number of spares.
    """
    grow = value(words, "--grow")
    found = ulfm.phases(grow)
    idle = ulfm.standing_by(number(words, "--spares", None) or 0, grow, ranks_of_a_worker(words))
    return idle, found[0].workers if found else None


def outlives(words: Sequence[str]) -> str | None:
    """The option among the words with which a run has to go on when a rank dies; None without one.

    Raises:
        UsageError: no number of ranks that stand by, or of replicas.
    """
    if standing_by(words)[0]:
        return "--spares, --grow"
    if number(words, "--replicas", None):
        return "--replicas"
    if "--drop-straggler-after" in names(words):
        return "--drop-straggler-after"
    survives = False
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if word in ("--survive", "--no-survive"):  # a file's value follows: True is the default, written out
            survives = word == "--survive" and following not in ("True", "False")
    return "--survive" if survives else None
