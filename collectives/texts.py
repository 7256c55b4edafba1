"""Short texts of a fixed size in bytes, so that ranks can exchange them without saying first how long they are."""

import numpy as np
from numpy.typing import NDArray

TEXT_BYTES = 1024


def packed(text: str) -> NDArray[np.uint8]:
    """TEXT_BYTES bytes with the text, or as much of it as fits."""
    raw = text.encode()[:TEXT_BYTES]
    room = np.zeros(TEXT_BYTES, np.uint8)
    room[: len(raw)] = np.frombuffer(raw, np.uint8)
    return room


def unpacked(raw: NDArray[np.uint8]) -> str:
    """The text in them."""
    return raw.tobytes().rstrip(b"\0").decode(errors="replace")
