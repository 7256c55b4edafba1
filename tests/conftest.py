"""Loads the multi-rank harness, and the checkout where psgd is not installed."""

import importlib.util
import os
import sys
from pathlib import Path

TESTS = Path(__file__).parent
SUPPORT = TESTS / "support"  # not tests/ itself: tests/psgd would hide psgd
if str(SUPPORT) not in sys.path:
    sys.path.append(str(SUPPORT))
if importlib.util.find_spec("psgd") is None:
    sys.path.insert(0, str(TESTS.parent))

os.environ.setdefault("PSGD_UNTRIED", "1")  # the tests try it, on simulated GPUs and on real ones

pytest_plugins = ["harness.plugin"]
