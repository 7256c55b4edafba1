"""The script of PyTorch's RPC alone prints seconds by size."""

import json
import sys
from pathlib import Path

import pytest

from psgd.launch.bench import alone
from psgd.launch.bench.peers import processes


def test_seconds_by_size():
    pytest.importorskip("torch")
    script = str(Path(alone.__file__).with_name("rpc_alone.py"))
    found = json.loads(processes.output([sys.executable, script, "4096,8192"], 60))
    assert list(found) == ["4096", "8192"] and min(found.values()) > 0
