"""Models in pieces: what the ranks need together, and what one needs against its real buffers."""

import numpy as np
import pytest

from psgd.config import configure
from psgd.estimate.counting import CountingArrays
from psgd.estimate.pieces import STASHED, of_mesh
from psgd.estimate.rank_memory import ACTIVATIONS, SLOT_BYTES, SLOTS
from psgd.nn.models import build
from psgd.parallel.pipeline import Pipeline


def gpt():
    return build("gpt", (16,), 64, layers=3, width=32, heads=4, tokens=True)


@pytest.mark.parametrize("mesh", ["pipe=3", "tensor=2", "pipe=2,tensor=3"])
def test_the_pieces_are_the_whole(mesh):
    model = gpt()
    config = configure(mesh=mesh, cut={"pipe=3": "3,5", "tensor=2": "auto"}.get(mesh, "4"), optimizer="adam")
    found = of_mesh(config, model, 0, 1)
    ranks = [int(part.partition("=")[2]) for part in mesh.split(",")]
    assert len(found) == np.prod(ranks)
    whole = model.layout.size * 4
    total = sum(each.rows["parameters"] for each in found)
    assert whole <= total < 1.3 * whole  # LayerNorms and biases are on several ranks
    for each in found:
        assert each.rows["optimizer state"] == 2 * each.rows["parameters"] == 2 * each.rows["gradients"]
        assert each.role.startswith("worker pipe=" if "pipe" in mesh else "worker tensor=")


@pytest.mark.ranks(2)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_stages_activations_are_those_that_it_makes(comm, schedule):
    model = build("mlp", (1, 8, 8), 10, hidden=32)
    config = configure(mesh="pipe=2", cut="2", pipe_schedule=schedule, batch_size=12, microbatches=4)
    expected = of_mesh(config, model, 0, 1)[comm.rank].rows
    with Pipeline(comm, model, (2,), schedule, batch=12, microbatches=4) as pipeline:
        params = pipeline.init(0)
        pipeline.bind(params, np.zeros_like(params))
        for _ in range(3):
            pipeline.gradient(12, np.ones((12, 64), np.float32), np.zeros(12, np.int64))
        counting = CountingArrays()
        pipeline.stages[0].context(3, wants_dx=comm.rank > 0, xp=counting)
        assert expected[ACTIVATIONS] == pytest.approx(counting.nbytes * pipeline.counters.in_flight_max, rel=0.05)
        assert expected["parameters"] == params.nbytes


def test_versions_of_the_weights_that_passes_under_way_need():
    model = build("mlp", (1, 8, 8), 10, hidden=32)
    for name, older in (("pipedream", [1, None]), ("pipedream-2bw", [1, 1]), ("1f1b", [None, None])):
        config = configure(mesh="pipe=2", cut="2", pipe_schedule=name, batch_size=12)
        found = [each.rows for each in of_mesh(config, model, 0, 1)]
        expected = [None if n is None else n * rows["parameters"] for n, rows in zip(older, found, strict=True)]
        assert [rows.get(STASHED) for rows in found] == expected


def test_gpus_gather_and_reduce_by_one_communicator():
    """Only where passes are added up: there hosts need two."""
    model, found = gpt(), {}
    for device in ("cpu", "cuda"):
        own = {"strategy": "allreduce", "mesh": "pipe=2,data=2", "cut": "4", "microbatches": 2}
        config = configure(**own, shard=3, device=device)
        found[device] = of_mesh(config, model, 0, 2)[0].rows[SLOTS]
    assert found["cpu"] == found["cuda"] + SLOT_BYTES
