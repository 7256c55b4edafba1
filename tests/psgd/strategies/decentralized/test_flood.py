"""Messages that flood a graph: each reaches all others once, whole and in its sender's order."""

import os
import time

import numpy as np
import pytest
from mpi4py import MPI

from psgd.kernels.errors import ContractError
from psgd.strategies.decentralized.decentralized import links
from psgd.strategies.decentralized.flood import APPLIED, KIND, NUMBER, ORIGIN, SAMPLES, Flood, FloodKind

ROOM = 100_000  # more than either MPI sends at once


def content(origin, k):
    """Of many lengths, some none, a few beyond what is sent at once."""
    length = (0, 1, 7, 4097, 63, ROOM)[(k + origin) % 6] if k % 5 == 0 else (37 * k + 11 * origin) % 300
    return (np.arange(length) * (origin + 3) + k).astype(np.uint8)


def until(test, seconds=30.0):
    limit = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < limit
        os.sched_yield()


@pytest.mark.ranks(2, 5)
@pytest.mark.parametrize("peers", ["all", "ring", "random:2"])
def test_all_messages_reach_all_once_and_in_order(comm, peers):
    graph, mine, got = links(peers, comm.size), 10 + 5 * comm.rank, []

    def deliver(message):
        words = message.words
        got.append(
            (int(words[ORIGIN]), int(words[NUMBER]), int(words[SAMPLES]), message.payload[: message.length].copy())
        )
        assert int(words[APPLIED + comm.rank]) == 1000 * int(words[ORIGIN]) + comm.rank

    own = comm.Dup()
    flood = Flood(own, graph, ROOM, deliver)
    flood.open()
    comm.Barrier()
    random = np.random.default_rng(comm.rank)
    for k in range(1, mine + 1):
        message, data = flood.compose(), content(comm.rank, k)
        message.words[SAMPLES:] = k * k
        message.words[APPLIED:] = 1000 * comm.rank + np.arange(comm.size)
        message.payload[: data.size] = data
        flood.send(message, FloodKind.UPDATE, data.size)
        if random.random() < 0.3:
            time.sleep(1e-3)
        if random.random() < 0.5:
            flood.poll()
    others = [origin for origin in range(comm.size) if origin != comm.rank]
    until(lambda: flood.poll() or len(got) == sum(10 + 5 * origin for origin in others))
    flood.leave()
    until(lambda: flood.poll() or flood.ended)
    flood.close()
    own.Free()
    for origin in others:
        theirs = [each for each in got if each[0] == origin]
        assert [(number, squared) for _, number, squared, _ in theirs] == [
            (k, k * k) for k in range(1, 11 + 5 * origin)
        ]
        for _, k, _, data in theirs:
            np.testing.assert_array_equal(data, content(origin, k))
    # Each message leaves its origin on all its links, and everyone else towards those who have no link with the origin,
    # but not back. So in a complete graph all is sent P - 1 times; elsewhere no worker sends more than its links allow.
    sent, received = np.array(comm.allgather((flood.bytes_sent, flood.bytes_received))).T
    assert sent.sum() == received.sum()
    head = 8 * (APPLIED + comm.size)
    size = [sum(head + content(o, k).size for k in range(1, 11 + 5 * o)) for o in range(comm.size)]
    if peers == "all" or comm.size == 2:
        assert flood.bytes_sent == (comm.size - 1) * (size[comm.rank] + head)
        assert flood.bytes_received == sum(size[o] + head for o in others)
    else:
        assert flood.bytes_sent <= len(graph[comm.rank]) * (sum(size) + head)
        assert flood.bytes_received >= sum(size[o] for o in others)


@pytest.mark.ranks(2)
def test_a_message_that_was_lost_is_an_error(comm):
    own = comm.Dup()
    if comm.rank == 0:
        message = np.zeros(APPLIED + 2, np.int64)
        message[[ORIGIN, NUMBER, KIND]] = 0, 2, FloodKind.UPDATE
        own.Send([message, MPI.BYTE], 1, 7)
    else:
        flood = Flood(own, [[1], [0]], 10, lambda message: None)
        flood.open()
        with pytest.raises(ContractError, match="message 2 of worker 0 came after 0"):
            until(flood.poll)
        flood.close()
    comm.Barrier()


@pytest.mark.ranks(3)
@pytest.mark.alone
def test_memory_is_used_again_and_what_is_left_is_taken_back(comm):
    own, made = comm.Dup(), []
    flood = Flood(own, links("all", 3), 50, lambda message: made.append(id(message)))
    flood.open()
    for _ in range(200):
        flood.send(flood.compose(), FloodKind.UPDATE, 50)
        comm.Barrier()
        flood.poll()
        comm.Barrier()
    until(lambda: flood.poll() or len(made) == 400)
    assert len(set(made)) < 20
    comm.Barrier()
    start = time.monotonic()
    flood.close()  # two receives still wait
    assert time.monotonic() - start < 1
    comm.Barrier()
