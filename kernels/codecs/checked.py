"""Proof at every update that a codec loses nothing: what `PSGD_CHECK=1` is for."""

import numpy as np

from psgd.kernels.codecs.codec import Bytes, Codec, Floats
from psgd.kernels.errors import ContractError


def check_each(codec: Codec) -> None:
    """Has each `encode` of a codec decode its own payload, and compare what it says with what was put in.

    Elementwise, as the dtype's additions round: residual = (residual before + put in) - said, without any tolerance.
    Elements that may have been clipped are left out. From then on `encode` raises a ContractError where that does not
    hold, or where an update that is not finite changes anything. Costs some passes, and arrays, at each update.
    """
    plain = codec.encode

    def encode(update: Floats, payload: Bytes) -> int:
        before = {name: array.copy() for name, array in codec.arrays().items()}
        expected = codec.before_sending(update)
        nbytes = plain(update, payload)
        if nbytes == 0:
            same = all(np.array_equal(array, before[name]) for name, array in codec.arrays().items())
            _hold(same, codec, "a refused update has changed the residual")
            return 0
        said = np.zeros_like(expected)
        entries = codec.decode_add(payload[:nbytes], said)
        _hold(entries == codec.sent, codec, f"{codec.sent} entries were sent, {entries} arrived")
        expected -= said
        wrong = np.flatnonzero((codec.residual != expected) & ~codec.at_bound())
        if wrong.size:
            i = wrong[0]
            where = f"element {i} is {codec.residual[i]}, expected {expected[i]}"
            _hold(False, codec, f"what was sent plus the residual is not the update that was passed in: {where}")
        return nbytes

    codec.encode = encode  # type: ignore[method-assign]


def _hold(holds: bool, codec: Codec, what: str) -> None:
    if not holds:
        raise ContractError(f"codec {codec.name} of {codec.n} elements: {what}")
