"""Loads the multi-rank harness, and the checkout where psgd is not installed."""

import importlib.util
import sys
from pathlib import Path

TESTS = Path(__file__).parent
if str(TESTS) not in sys.path:
    sys.path.append(str(TESTS))
if importlib.util.find_spec("psgd") is None:
    sys.path.insert(0, str(TESTS.parent))

pytest_plugins = ["harness.plugin"]
