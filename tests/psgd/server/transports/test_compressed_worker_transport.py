"""Exchanges of payloads between both compressed transports, on real ranks, beside a codec of the same options."""

import numpy as np
import pytest

from psgd.collectives.mpi.wait import Waiter
from psgd.compression.options import Compression
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim import rules, schedules
from psgd.optim.optimizer import OptimizerOptions
from psgd.runtime.mesh import Mesh
from psgd.server.context import PushPullContext
from psgd.server.transports.compressed_server_transport import CompressedServerTransport
from psgd.server.transports.compressed_worker_transport import CompressedWorkerTransport
from psgd.server.wire import HEADER_BYTES, NOTHING, WHOLE, Header, MessageKind

N, LR = 300, 0.5
CODEC = Compression("topk", 0.1, 0.0, 0, 0.0, 0.0)
OPTIONS = OptimizerOptions(rules.sgd(), schedules.constant(LR))


def gradient(step):
    return np.sin(np.arange(N) * (step + 1))


def decoded(codec, vector):
    """What a codec says of a vector, as a vector."""
    payload, out = np.empty(codec.max_nbytes(), np.uint8), np.zeros(N)
    nbytes = codec.encode(vector, payload)
    codec.decode_add(payload[:nbytes], out)
    return out, nbytes


@pytest.mark.ranks(2)
def test_payloads_and_whole_vectors_in_turn(comm):
    """Whole, three payloads, nothing, the end: both sides have what the codecs say, and what is left comes later."""
    with Mesh(comm, 1) as mesh:
        context = PushPullContext(mesh, np.zeros(N), OPTIONS, RunMetrics(1), Waiter(True), N, CODEC)
        params = context.params
        codec, down = CODEC.codec(N, params.dtype), CODEC.codec(N, params.dtype, 1)
        known, expected = np.zeros(N), np.zeros(N)
        if mesh.role == "server":
            transport = CompressedServerTransport(context, CODEC, params, [range(N)])
            for step in range(6):
                push = transport.next()
                if step in (1, 2, 3):
                    sent, nbytes = decoded(codec, gradient(step))
                    assert push.payload_bytes == nbytes
                    got = transport.fetch(0, 0)
                    np.testing.assert_array_equal(got, sent)
                    params -= LR * got
                else:
                    assert push.payload_bytes == (NOTHING if step == 4 else WHOLE)
                if step == 0:
                    params -= LR * transport.fetch(0, 0)
                kind = MessageKind.END if step == 5 else MessageKind.REPLY
                transport.reply([0], Header(kind=kind, version=step, checkpoints=step // 3))
                transport.emit([0], 0)
            transport.drain()
            assert list(transport.arrays()) == [f"down.{name}" for name in down.arrays() if name != "residual"]
            transport.close()
            return
        grads = np.zeros(N)
        transport = CompressedWorkerTransport(context, CODEC, grads)
        for step in range(6):
            grads[:] = gradient(step)
            transport.whole = step == 0
            before, sent = params.copy(), transport.bytes_sent
            kind = MessageKind.DONE if step == 5 else MessageKind.PUSH
            assert transport.exchange(kind, step < 4).version == step
            if step == 0:
                expected -= LR * gradient(0)
                known[:] = expected
            elif step < 5:
                if step < 4:
                    part, nbytes = decoded(codec, gradient(step))
                    assert transport.bytes_sent - sent == HEADER_BYTES + nbytes
                    expected -= LR * part
                down.residual.fill(0)
                known += decoded(down, expected - known)[0]
            else:
                known[:] = expected
            np.testing.assert_array_equal(params, known)
            if step == 3:
                np.testing.assert_array_equal(transport.pulled, before)  # the answer told of a checkpoint
        transport.close()
