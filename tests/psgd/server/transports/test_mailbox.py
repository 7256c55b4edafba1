import numpy as np
import pytest

from psgd.collectives.mpi.request_cleanup import close
from psgd.collectives.mpi.tags import Tag
from psgd.server.transports.mailbox import Mailbox
from psgd.server.wire import HEADER_BYTES, INLINE_BYTES, Header


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("inline", "shared"), [(False, False), (True, False), (True, True), (False, True)])
@pytest.mark.parametrize("n", [0, 3, INLINE_BYTES // 8, INLINE_BYTES // 8 + 1])
@pytest.mark.both_mpis_whole
def test_headers_and_small_shards_both_ways(comm, inline, shared, n):
    tags = (Tag.PUSH, Tag.REPLY) if comm.rank == 0 else (Tag.REPLY, Tag.PUSH)
    box = Mailbox(comm, 1 - comm.rank, np.zeros(n), *tags, inline=inline, shared=shared)
    assert box.inline == (inline and 0 < 8 * n <= INLINE_BYTES)
    whole, pushes_in = HEADER_BYTES + (8 * n if box.inline else 0), tags[0] == Tag.PUSH
    expected = (HEADER_BYTES, whole) if pushes_in else (whole, HEADER_BYTES)
    assert (box.nbytes_in, box.nbytes_out) == (expected if shared else (whole, whole))
    for turn in range(3):
        box.header_in.Start()
        box.outgoing_bytes[:] = bytes(Header(kind=comm.rank, push=turn, loss=0.5))
        box.outgoing.worker = 7
        box.payload_out[:] = 10 * turn + comm.rank
        box.header_out.Start()
        box.header_in.Wait()
        box.header_out.Wait()
        got = box.incoming
        got.check(7, 0)
        assert (got.kind, got.push, got.loss) == (1 - comm.rank, turn, 0.5)
        assert box.payload_in.size == (n if box.inline and not (shared and pushes_in) else 0)
        assert np.all(box.payload_in == 10 * turn + 1 - comm.rank)
    close([box.header_in], [box.header_out])


@pytest.mark.ranks(2)
@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("count", [1, 8, 9])
def test_settings_follow_the_header_of_a_push(comm, inline, count):
    server = comm.rank == 0
    tags = (Tag.PUSH, Tag.REPLY) if server else (Tag.REPLY, Tag.PUSH)
    box = Mailbox(comm, 1 - comm.rank, np.zeros(5), *tags, inline=inline, settings=count)
    room = HEADER_BYTES + 64 * -(-count // 8)
    pushes, answers = room + 40 * inline, HEADER_BYTES + 40 * inline
    assert (box.nbytes_in, box.nbytes_out) == ((pushes, answers) if server else (answers, pushes))
    box.payload_out[:] = 3 + comm.rank
    if server:
        box.header_in.Start()
        box.header_in.Wait()
        assert box.settings.tolist() == [0.1 + k for k in range(count)]
        assert np.all(box.payload_in == 4)
    else:
        box.settings[:] = [0.1 + k for k in range(count)]
        box.header_out.Start()
        box.header_out.Wait()
    assert box.settings.size == count and box.payload_in.size == 5 * inline
    close([box.header_in], [box.header_out])
