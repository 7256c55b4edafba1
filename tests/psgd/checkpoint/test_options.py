from pathlib import Path

import pytest

from psgd.checkpoint import options
from psgd.kernels.errors import UsageError


@pytest.mark.parametrize(
    ("name", "fine", "wrong"),
    [
        ("DIRECTORY", Path("run"), ""),
        ("EVERY", 0, -1),
        ("MINUTES", 0.5, -0.5),
        ("KEEP", 1, 0),
        ("RESUME", True, 1),
        ("SAVE_SIGNAL", "TERM", "KILL"),
        ("SAVE_SIGNAL", "HUP", "USR1"),
        ("SAVE", Path("w.npz"), "w.txt"),
        ("SAVE", Path("w.pt"), "w"),
    ],
)
def test_ranges(name, fine, wrong):
    option = getattr(options, name)
    assert option.check("--x", fine) == fine
    with pytest.raises(UsageError, match="--x: expected"):
        option.check("--x", wrong)


def test_what_needs_a_directory_is_refused_without():
    options.refuse([], "--checkpoint-dir")
    with pytest.raises(UsageError, match=r"^resume: expected checkpoint_dir with it$"):
        options.refuse(["resume"], "checkpoint_dir")
    with pytest.raises(UsageError, match=r"^--resume, --checkpoint-keep: expected --checkpoint-dir with them$"):
        options.refuse(["--resume", "--checkpoint-keep"], "--checkpoint-dir")
