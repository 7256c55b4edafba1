"""Calls by another thread than the program's, as that of non-blocking calls is: its current GPU is the first one."""

import threading
from types import SimpleNamespace

import pytest
from harness.played_cupy import CUDARuntimeError, played_cupy


class Alone:
    """Rank 1 of two, which hears its own words from both."""

    rank, size = 1, 2

    def Allgather(self, mine, everybody):
        everybody[...] = mine

    def Allreduce(self, sendbuf, recvbuf, op):
        pass

    def Barrier(self):
        pass


def in_a_thread(function):
    """What a function returns in a thread of its own."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_all_memory_is_made_and_mapped_on_the_rank_s_gpu(monkeypatch):
    monkeypatch.setenv("PSGD_PEERS", "1")  # both have one GPU here
    with played_cupy() as cuda:
        from psgd.collectives.peers.group import PeerGroup

        def use():
            group = PeerGroup.create(Alone(), 1)
            assert group is not None and group.widen()
            group.scratch(1000)
            group.count_alike()
            group.close()
            return True

        assert in_a_thread(use)
        assert {"array", "malloc", "memset", "map", "get", "set", "free"} <= {what for what, _ in cuda.done}
        assert {(what, device) for what, device in cuda.done if device != 1} == set()
        assert cuda.current == 0


def test_a_kernel_that_has_failed_ends_the_wait_with_its_error():
    """CuPy's `Event.done` says that it is not done yet, for ever."""
    with played_cupy() as cuda:
        from psgd.collectives.peers.run import PeerWait

        group = SimpleNamespace(host=[0, 0, 0], device=1)
        wait = PeerWait(group, SimpleNamespace(ptr=1), lambda: False)
        cuda.status = [600, 0]
        assert not wait() and wait() and wait.verdict == 0
        cuda.status = [600, 700]
        assert not wait()
        with pytest.raises(CUDARuntimeError, match="700"):
            wait()
        assert set(cuda.done) == {("query", 1)}
