"""The vectors that an estimate names, against what a run's arrays take: NumPy's own count and shared memory."""

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from harness.memory_count import Counter

import psgd
from psgd.estimate import strategy_vectors
from psgd.estimate.rank_memory import SLOT_BYTES
from psgd.kernels import codecs

SIZE = 4_000_000
STATE = {"sgd": 0, "momentum": 1, "adam": 2}
CASES = [
    ("sync", {}, "momentum"),
    ("async", {"accumulate": 2}, "adam"),
    ("sync", {"compress": "onebit"}, "momentum"),
    ("sync", {"compress": "onebit"}, "sgd"),
    ("allreduce", {}, "adam"),
    ("allreduce", {"accumulate": 2}, "sgd"),
    ("averaging", {}, "momentum"),
    ("averaging", {"outer_lr": 0.7, "outer_momentum": 0.5}, "sgd"),
    ("averaging", {"outer_lr": 0.7}, "adam"),
    ("easgd", {}, "momentum"),
    ("easgd", {"easgd_order": "async"}, "sgd"),
    ("easgd", {"easgd_order": "round-robin"}, "momentum"),
    ("easgd", {"easgd_order": "hogwild"}, "momentum"),
    ("hogwild", {}, "adam"),
    ("hogwild", {}, "sgd"),
]


@pytest.mark.ranks(3, timeout=110)
@pytest.mark.parametrize(("strategy", "options", "rule"), CASES)
def test_a_workers_vectors(comm, strategy, options, rule):
    with Counter() as counter:
        params = np.zeros(SIZE, np.float32)
        connection = psgd.connect(comm, params, strategy=strategy, lr=0.01, rule=rule, **options)
        with connection as ps:
            for _ in range(9):
                ps.grads[:] = 0.001
                ps.step(4, 0.0)
            taken = counter.read()
        if connection.is_worker:
            rows = strategy_vectors.of_worker(strategy, options, STATE[rule], connection.workers, connection.mesh.index)
            slots = SLOT_BYTES if strategy_vectors.uses_collectives(strategy, options) else 0
            expected = sum(rows.values()) * params.nbytes
            assert abs(taken - expected - slots) < 0.05 * (expected + slots), (taken / params.nbytes, rows)


@pytest.mark.ranks(2, timeout=110)
def test_a_workers_vectors_where_workers_may_die(comm):
    cases = [
        ("allreduce", {}, "momentum"),
        ("allreduce", {"compress": "onebit"}, "momentum"),
        ("averaging", {}, "adam"),
        ("averaging", {"average_momentum": False}, "momentum"),
        ("averaging", {"outer_lr": 0.7, "outer_momentum": 0.5}, "momentum"),
    ]
    for turn, (strategy, options, rule) in enumerate([cases[0], *cases]):  # what is compiled is compiled in the first
        with Counter() as counter:
            params = np.zeros(SIZE, np.float32)
            connection = psgd.connect(comm, params, strategy=strategy, lr=0.01, rule=rule, **options)
            connection.mesh.survival = SimpleNamespace(started=lambda: None)
            with connection as ps:
                ps._client._regroup._deaths = SimpleNamespace(agree=lambda bits: bits)
                for _ in range(9):
                    ps.grads[:] = 0.001
                    ps.step(4, 0.0)
                taken = counter.read()
                ps._client._regroup = None  # so that all is freed
            connection.mesh.survival = None
            connection.mesh.free()
        rows = strategy_vectors.of_worker(strategy, options, STATE[rule], 2, comm.rank, survives=True)
        expected = sum(rows.values()) * params.nbytes + SLOT_BYTES
        assert turn == 0 or abs(taken - expected) < 0.05 * expected, (strategy, taken / params.nbytes, rows)


@pytest.mark.ranks(3, timeout=110)
@pytest.mark.parametrize(
    ("servers", "options"), [(1, {}), (2, {}), (1, {"clip_norm": 1.0}), (1, {"compress": "onebit"})]
)
def test_a_servers_vectors(comm, servers, options):
    for _ in range(2):  # what is compiled is compiled in the first run
        with Counter():
            params = np.zeros(SIZE, np.float32)
            rule = "momentum" if "compress" in options else "adam"
            connection = psgd.connect(comm, params, strategy="sync", lr=0.01, rule=rule, servers=servers, **options)
            with connection as ps:
                for _ in range(3):
                    ps.grads[:] = 0.001
                    ps.step(4, 0.0)
            taken = tracemalloc.get_traced_memory()[1]
    if connection.is_server:
        expected = sum(strategy_vectors.of_server(options, 2, servers, 3 - servers).values()) * params.nbytes
        assert abs(taken - expected) < 0.05 * expected + (1 << 20), taken / params.nbytes


@pytest.mark.parametrize("strategy", list(psgd.strategies.STRATEGIES))
def test_every_strategy_has_rows(strategy):
    for workers in (1, 4):
        rows = strategy_vectors.of_worker(strategy, {}, 2, workers)
        assert rows["parameters"] == rows["gradients"] == 1 and all(number > 0 for number in rows.values())


def test_topk_has_a_momentum_of_its_own_with_any_rule():
    rows = strategy_vectors.of_worker("sync", {"compress": "topk"}, 0, 3)
    assert rows[strategy_vectors.STATE] == 1
    assert rows == strategy_vectors.of_worker("sync", {"compress": "topk"}, 2, 3)
    assert [each.size for each in codecs.create("topk", 100).arrays().values()] == [100, 100, 1]  # residual, momentum


def test_servers_that_decode_have_room_for_whole_gradients_where_workers_may_die():
    dies, not_so = (strategy_vectors.of_server({"compress": "topk"}, 1, 2, 3, survives) for survives in (True, False))
    assert sum(dies.values()) - sum(not_so.values()) == 3 / 2
    assert strategy_vectors.of_server({}, 1, 2, 3, True) == strategy_vectors.of_server({}, 1, 2, 3)


def test_servers_that_hold_each_shard_twice_have_twice_the_state():
    once, twice = (strategy_vectors.of_server({"replicas": replicas}, 2, 4, 2) for replicas in (0, 1))
    assert (once[strategy_vectors.STATE], twice[strategy_vectors.STATE]) == (0.5, 1.0)
    assert once[strategy_vectors.PARAMETERS] == twice[strategy_vectors.PARAMETERS] == 1
