"""Loads the multi-rank harness, and the checkout where psgd is not installed."""

import importlib.util
import sys
from pathlib import Path

TESTS = Path(__file__).parent
SUPPORT = TESTS / "support"  # not tests/ itself: tests/psgd would hide psgd
if str(SUPPORT) not in sys.path:
    sys.path.append(str(SUPPORT))
if importlib.util.find_spec("psgd") is None:
    sys.path.insert(0, str(TESTS.parent))

pytest_plugins = ["harness.plugin"]
