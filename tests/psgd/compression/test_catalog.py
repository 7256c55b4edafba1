import subprocess
import sys

import pytest

from psgd.compression import catalog
from psgd.kernels.codecs import catalog as codecs
from psgd.kernels.errors import UsageError


def test_every_codec_and_none_can_be_chosen():
    chosen = catalog.compress("whole updates")
    assert chosen.default is None and chosen.default_text() == "whole updates"
    assert [chosen.check("--compress", name) for name in ("none", *codecs.CODECS)] == ["none", *codecs.CODECS]
    with pytest.raises(UsageError, match=r"--compress: expected one of none, .*; did you mean topk\?"):
        chosen.check("--compress", "top")


@pytest.mark.parametrize(("option", "fine", "wrong"), [("DENSITY", 1.0, 0.0), ("WARMUP", 0.0, -1.0), ("SYNC", 0, -1)])
def test_ranges(option, fine, wrong):
    one = getattr(catalog, option)
    assert one.check("x", fine) == fine
    with pytest.raises(UsageError, match="x: expected"):
        one.check("x", wrong)


def test_it_loads_no_codec():
    probe = "import sys, psgd.compression.catalog; print(*{'numba', 'numpy', 'mpi4py'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []
