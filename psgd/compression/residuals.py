"""What a worker keeps whose updates are compressed: what its codec has left to send, and the momentum before it."""

from psgd.checkpoint.declared import Arrays, Combine, Item
from psgd.compression.before_encoding import BeforeEncoding
from psgd.kernels.codecs.codec import Codec


def kept(codec: Codec | None, before: BeforeEncoding, factor: float = 1.0) -> list[Item]:
    """Declares it for a checkpoint.

    With another number of workers nothing that was left to send is lost: worker 0 sends it for all.

    Args:
        codec: this worker's; None where updates are sent whole.
        before: this worker's.
        factor: what the mean of the codecs' own momentum is multiplied by then.
    """
    arrays = {} if codec is None else {f"codec.{name}": array for name, array in codec.arrays().items()}
    residual = {"codec.residual": arrays.pop("codec.residual")} if arrays else {}
    own = {name: array for name, array in arrays.items() if array.size > 1}
    numbers = {name: array for name, array in arrays.items() if array.size <= 1}  # a threshold, a count
    velocity = {"velocity": before.velocity} if before.velocity.size else {}
    mean, anew = "momentum: each worker starts from the mean", "momentum: begins anew"
    return [
        Arrays(residual, Combine.SUM, found="residuals: worker 0 has the sum of all"),
        Arrays(own, Combine.MEAN, factor=factor, found=mean, missing=anew),
        Arrays(velocity, Combine.MEAN, found=mean, missing=anew),
        Arrays(numbers, Combine.FIRST),
    ]
