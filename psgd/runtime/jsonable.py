"""Values as JSON can say them."""

import math
from pathlib import Path
from typing import Any

JSON = Any
"""None, bool, int, float, str, or lists and dicts of them."""


def clean(value: Any) -> Any:
    """The same value for JSON: paths as text, floats that are not finite as None."""
    if isinstance(value, dict):
        return {key: clean(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
