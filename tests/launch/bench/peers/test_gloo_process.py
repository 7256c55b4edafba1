"""One process of the Gloo peer, alone: it joins, verifies, times, and names what is wrong."""

import os

import pytest

distributed = pytest.importorskip("torch.distributed")


@pytest.fixture
def process():
    from psgd.launch.bench.peers.gloo_process import GlooProcess

    alone = GlooProcess()
    where = alone.reply("keep_store", host="127.0.0.1", size=1)
    alone.reply("join", rank=0, size=1, interface="", cores=sorted(os.sched_getaffinity(0)), **where)
    yield alone
    distributed.destroy_process_group()


def test_verifies_and_times(process, monkeypatch):
    options = {"collective": "allreduce", "op": "mean"}
    assert process.reply("prepare", options=options, nbytes=400) == {"wrong": ""}
    seconds = process.reply("rounds", inner=2, repeats=3)["seconds"]
    assert len(seconds) == 3 and min(seconds) > 0
    monkeypatch.setattr(distributed, "all_reduce", lambda to, op: to[7].add_(1))
    assert process.reply("prepare", options=options, nbytes=400)["wrong"].startswith("rank 0: element 7 is ")
    with pytest.raises(KeyError):
        process.reply("nothing")
