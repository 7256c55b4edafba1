"""What a run of `psgd bench train` trains; passed to PyTorch's processes as JSON."""

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class TorchOptions:
    """As `psgd train`'s options of the same names, and two of its own.

    Attributes:
        name: a strategy or peer in `psgd.launch.bench.train.settings`.
        evaluates: worker 0 measures the accuracy after every epoch, within the time.
        device: cpu or cuda.
    """

    name: str
    dataset: str
    model: str
    epochs: int
    batch_size: int
    lr: float
    seed: int
    workers: int
    inject: str = ""
    evaluates: bool = False
    device: str = "cpu"

    def to_json(self) -> str:
        """As one line, for a command line."""
        return json.dumps(asdict(self))
