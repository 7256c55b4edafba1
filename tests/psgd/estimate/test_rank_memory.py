"""A run's estimate from its options."""

import numpy as np
import pytest

from psgd.config import configure
from psgd.estimate import rank_memory
from psgd.nn.models import build


@pytest.mark.parametrize(("optimizer", "number"), [("sgd", 0), ("momentum", 1), ("nesterov", 1), ("adam", 2)])
def test_the_state_is_the_rules_own(optimizer, number):
    assert rank_memory.state_vectors(configure(optimizer=optimizer)) == number


def test_servers_and_workers_are_told_apart():
    model = build("mlp", (1, 8, 8), 10, hidden=32)
    size = model.layout.size * 4
    worker, server = rank_memory.of_run(configure(optimizer="adam", batch_size=16), model, 2, 3)
    assert (worker.role, worker.ranks, server.role, server.ranks) == ("worker", 3, "server", 2)
    assert server.rows == {"parameters": size, "optimizer state": size}
    assert worker.rows["gradients"] == size and "optimizer state" not in worker.rows
    assert worker.rows[rank_memory.BATCH] == 16 * (64 * 4 + 8)
    assert worker.total == sum(worker.rows.values())


def test_more_samples_need_more_activations_alone():
    model = build("cnn", (1, 28, 28), 10, hidden=32)
    small, large = (rank_memory.of_run(configure(batch_size=n), model, 0, 1)[0].rows for n in (4, 8))
    changed = {name for name in small if small[name] != large[name]}
    assert changed == {rank_memory.ACTIVATIONS, rank_memory.BATCH}
    np.testing.assert_allclose(large[rank_memory.ACTIVATIONS], 2 * small[rank_memory.ACTIVATIONS], rtol=0.01)


@pytest.mark.parametrize("what", ["optimizer", "parameters"])
def test_offloaded_workers_are_in_two_places(what):
    model = build("mlp", (1, 28, 28), 10, hidden=512)
    config = configure(strategy="allreduce", optimizer="adam", device="cuda", offload=what)
    size = model.layout.size * 4
    card, host = rank_memory.of_run(config, model, 0, 2)
    assert (card.role, card.device, host.role, host.device) == ("worker", "cuda", rank_memory.ON_HOST, "cpu")
    assert host.rows["parameters"] == host.rows["gradients"] == size and host.rows["optimizer state"] == 2 * size
    assert rank_memory.ACTIVATIONS in card.rows and "optimizer state" not in card.rows
    if what == "optimizer":
        assert card.rows["parameters"] == card.rows["gradients"] == size
    else:
        assert card.rows[rank_memory.TWO_LAYERS] == card.rows[rank_memory.TWO_GRADIENTS] == 2 * 4 * (784 * 512 + 512)


def test_layers_on_a_gpu_have_what_they_share():
    model = build("gpt", (16,), 64, layers=3, width=32, heads=4, tokens=True)
    rows = rank_memory.on_gpu("parameters", model.layout.size * 4, [model])
    hidden = 4 * (8 * 32 * 32 + 4 * 32 + 32 + 64)
    assert rows[rank_memory.TWO_GRADIENTS] == 2 * hidden
    assert rows[rank_memory.TWO_LAYERS] == 2 * max(hidden, 4 * 64 * 32)


def test_slots_are_as_large_as_their_layout():
    from psgd.collectives.shm import layout

    assert 2 * (layout.REGION_BYTES + 3 * layout.FETCH_BYTES + 64) == rank_memory.SLOT_BYTES


def test_a_single_worker_leaves_the_state_to_its_server():
    model = build("mlp", (1, 8, 8), 10, hidden=32)
    for servers, has in ((1, False), (0, True)):
        worker = rank_memory.of_run(configure(strategy="ssp", optimizer="adam"), model, servers, 1)[0]
        assert ("optimizer state" in worker.rows) == has
