"""A worker's side of encoded pushes and pulls, which hears of other workers' deaths."""

from psgd.compression.options import Compression
from psgd.server.context import PushPullContext
from psgd.server.surviving.worker_side import SurvivingWorkerTransport
from psgd.server.transports.compressed_worker_transport import CompressedWorkerTransport
from psgd.server.transports.gradient_memory import Vector


class CodedWorkerTransport(SurvivingWorkerTransport, CompressedWorkerTransport):
    """Both. What a server has told comes with an answer of either form, and is heard behind it."""

    def __init__(self, context: PushPullContext, compression: Compression, grads: Vector) -> None:
        CompressedWorkerTransport.__init__(self, context, compression, grads)
        self._listen(context.mesh)
