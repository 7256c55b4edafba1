"""What a worker's step changes, as bytes for others, and others' bytes as what they change here."""

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint.declared import Item
from psgd.compression import residuals
from psgd.compression.before_encoding import BeforeEncoding
from psgd.compression.options import Compression
from psgd.kernels.codecs import sparse
from psgd.kernels.errors import UsageError
from psgd.worker.context import RunContext

Vector = NDArray[np.floating]
Bytes = NDArray[np.uint8]


class Updates:
    """One worker's: u = -lr v, with v its gradient through clipping, weight decay and momentum, all before encoding.

    lr is the whole learning rate, as with async: each update is a step of its own. Where updates are sent whole,
    so is all that the codec had left.

    Args:
        context: what to work with; a rule other than sgd or momentum is a UsageError.

    Attributes:
        codec: whose residual is what this worker has left to send; None where all updates are sent whole.
        room: bytes of the longest one.
        samples: behind all that have been added here.
        made: how many this worker has made.
    """

    def __init__(self, context: RunContext) -> None:
        if context.optimizer.rule.factor is None:
            raise UsageError(
                f"rule: strategy decentralized applies momentum before an update is sent, expected sgd or momentum, "
                f"got {context.optimizer.rule.name}"
            )
        self.params = context.params
        size, dtype, given = self.params.size, self.params.dtype, context.compression
        self.codec = None if given is None else given.codec(size, dtype)
        chosen = given or Compression(
            "none", 1.0, 0.0, 0, context.optimizer.rule.factor, context.optimizer.rule.weight_decay
        )
        self._compression = chosen
        self._before = BeforeEncoding(chosen, self.params, context.optimizer, workers=1)
        self._update: Vector = np.zeros(size, dtype)
        self.room = 0 if self.codec is None else self.codec.max_nbytes()
        if self.codec is None or chosen.warmup or chosen.sync_every:
            self.room = max(self.room, self._update.nbytes)
        self.samples = self.made = 0
        if self.codec is not None:
            self.codec.warm_up()

    def kept(self) -> list[Item]:
        """Declares for a checkpoint what is left to send."""
        return residuals.kept(self.codec, self._before)

    @property
    def lr(self) -> float:
        """Rate of the newest."""
        return self._before.lr

    @property
    def whole(self) -> bool:
        """Whether the next one is to be sent whole."""
        return self.codec is None or self._compression.sends_whole(self.samples, self.made + 1)

    def make(self, grads: Vector, payload: Bytes, whole: bool) -> int:
        """Writes one.

        Args:
            grads: mean gradient at the parameters as they are; not changed.
            payload: `room` bytes.
            whole: do not encode.

        Returns:
            Its bytes; 0 where it is not finite. Of a gradient that is not nothing remains, neither in the momentum nor
            in the residual; momentum that is not starts again at 0.
        """
        if sparse.look(grads) < 0:
            return 0
        if not self._before(self._update, grads, self.params, self._before.begin(self.samples)):
            return 0
        self.made += 1
        if self.codec is not None and not whole:
            return self.codec.encode(self._update, payload)
        sent = payload[: self._update.nbytes].view(self._update.dtype)
        if self.codec is not None:
            self.codec.send_whole(self._update)
        sent[:] = self._update
        return self._update.nbytes

    def add(self, payload: Bytes, whole: bool, samples: int) -> None:
        """Adds one, its own or another's, to the parameters.

        Raises:
            CodecError: it is damaged.
        """
        if whole or self.codec is None:
            np.add(self.params, payload.view(self.params.dtype), out=self.params)
        else:
            self.codec.decode_add(payload, self.params)
        self.samples += samples
