"""The elastic pull in GPU memory: `psgd.kernels.elastic` bit for bit."""

from psgd.kernels.array import Array
from psgd.kernels.device.elementwise import Elementwise

_STRETCH = Elementwise(
    "stretch", "out displacement, in params, in centre", "rate", "displacement = rate * (params - centre)"
)
_FORWARD = Elementwise(
    "forward",
    "out displacement, in params, in incoming, out outgoing",
    "rate",
    "T old = incoming; T pull = rate * (params - old); displacement = pull; outgoing = old + pull",
)


def stretch(displacement: Array, params: Array, centre: Array, rate: float) -> None:
    _STRETCH((displacement, params, centre), (rate,))


def forward(displacement: Array, params: Array, incoming: Array, outgoing: Array, rate: float) -> None:
    _FORWARD((displacement, params, incoming, outgoing), (rate,))
