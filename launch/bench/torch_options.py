"""What a mode of `psgd bench train` trains; passed to its processes as JSON."""

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Options:
    """As `psgd train`'s options of the same names, and `mode`, a name in `psgd.launch.bench.train.MODES`."""

    mode: str
    dataset: str
    model: str
    epochs: int
    batch_size: int
    lr: float
    seed: int
    workers: int

    def to_json(self) -> str:
        """As one line, for a command line."""
        return json.dumps(asdict(self))
