"""The script of Gloo alone prints seconds by size."""

import json
import sys
from pathlib import Path

import pytest

from psgd.launch.bench import alone
from psgd.launch.bench.peers import processes


def test_seconds_by_size():
    pytest.importorskip("torch")
    script = str(Path(alone.__file__).with_name("gloo_alone.py"))
    found = json.loads(processes.output([sys.executable, script, "2", "4096,65536"], 60))
    assert list(found) == ["4096", "65536"] and min(found.values()) > 0
