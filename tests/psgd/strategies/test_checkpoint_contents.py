"""What workers save, by name: checkpoints of earlier versions stay readable, and later ones say the same."""

import numpy as np
import pytest

import psgd
from psgd.checkpoint.folder import folders, open_checkpoint

ROUNDS = "algorithms cuts samples version"
EASGD = f"{ROUNDS} calls steps"
SHARED = f"{EASGD} exchange line loss staleness"
SERVED = "bytes_received bytes_sent computed_s drawn pushes waited_s"
FLOOD = f"{ROUNDS} made"


def easgd(order):
    return {"strategy": "easgd", "easgd_order": order, "period": 1, "rule": "momentum"}


def flood(codec):
    return {"strategy": "decentralized", "compress": codec, "density": 0.5, "rule": "momentum"}


def allreduce(**more):
    return {"strategy": "allreduce", "rule": "momentum", **more}


def averaging(**more):
    return {"strategy": "averaging", "period": 1, "rule": "momentum", **more}


CONTENTS = [  # options; tensors of every worker, of worker 0 too, of the last one too; facts
    (allreduce(), "", "params state0", "", f"{ROUNDS} unit"),
    (allreduce(compress="threshold"), "codec.residual codec.step codec.tau velocity", "params", "", ROUNDS),
    (allreduce(compress="topk"), "codec.residual codec.step codec.velocity", "params", "", ROUNDS),
    (allreduce(compress="onebit"), "codec.residual velocity", "params", "", ROUNDS),
    (averaging(), "", "params state0", "", f"{ROUNDS} active steps"),
    (averaging(outer_momentum=0.5), "", "outer_velocity params state0", "", f"{ROUNDS} active steps"),
    (averaging(average_momentum=False), "state0", "params", "", f"{ROUNDS} active steps"),
    (easgd("sync"), "params state0", "centre", "", EASGD),
    (easgd("round-robin"), "params state0", "", "centre head", f"{EASGD} exchange known"),
    (easgd("async"), "params state0", "centre", "", SHARED),
    (easgd("hogwild"), "params state0", "centre", "", SHARED),
    ({"strategy": "hogwild", "rule": "momentum"}, "state0", "params", "", f"{EASGD} before leaders line staleness"),
    (flood("none"), "applied params velocity", "", "", FLOOD),
    (flood("threshold"), "applied codec.residual codec.step codec.tau params velocity", "", "", FLOOD),
    (flood("topk"), "applied codec.residual codec.step codec.velocity params", "", "", FLOOD),
    (
        flood("pairs") | {"peers": "pairs", "compress": None, "density": None},
        "lines params state0",
        "",
        "",
        f"{ROUNDS} random steps",
    ),
    ({"strategy": "sync", "rule": "momentum"}, "", "", "", SERVED),
    ({"strategy": "sync", "compress": "topk"}, "0.residual 0.step 0.velocity pulled", "", "", f"{SERVED} whole"),
    (
        {"strategy": "async", "compress": "onebit", "rule": "momentum"},
        "0.residual pulled velocity",
        "",
        "",
        f"{SERVED} whole",
    ),
]


@pytest.mark.ranks(3)
@pytest.mark.parametrize(("options", "all_of", "first", "last", "facts"), CONTENTS)
def test_names(comm, options, all_of, first, last, facts, tmp_path):
    with psgd.connect(comm, np.ones(64), lr=0.01, checkpoint_dir=str(tmp_path), **options) as ps:
        while not ps.stop:
            if ps.worker == 0 and ps.clock == 2:
                ps.save(stop=True)
            ps.grads[:] = ps.params
            ps.step(1, 1.0)
    if comm.rank == 0:
        found = open_checkpoint(folders(tmp_path)[0])
        names = found.manifest.names("worker")
        for name in names:
            state = found.state(name)
            tensors = [all_of, first if name == names[0] else "", last if name == names[-1] else ""]
            assert sorted(state.tensors) == sorted(" ".join(tensors).split()), name
            weights = {"weights"} if "centre" in state.tensors else set()
            assert set(state.facts) - {"loop", "metrics"} == {*facts.split(), *weights}, name
