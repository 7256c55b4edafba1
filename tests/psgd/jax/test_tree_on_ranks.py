"""Pytrees of every kind under every strategy, against sequential simulations with gradients by `jax.grad` alone.

Each test trains all kinds, one after the other, with the models of the tests before: compiling is the dear part.
"""

import functools
import re

import numpy as np
import pytest
from harness import expected

import psgd
from psgd.strategies import STRATEGIES

jax = pytest.importorskip("jax")
jnp = jax.numpy
LR, STEPS = 0.05, 4
KINDS = ("plain", "tied", "frozen", "state", "unused", "reduced")
ROUNDING = 2.0**-8 * LR * STEPS
"""What one gradient of bfloat16 that is rounded the other way can change, for gradients below 1."""


def params_of(kind, seed):
    rng = np.random.default_rng(seed)
    params = {name: {"w": rng.normal(size=(4, 4)) / 2, "b": rng.normal(size=4) / 2} for name in ("first", "second")}
    params = jax.tree_util.tree_map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
    if kind == "tied":
        del params["second"]["w"]
    elif kind == "unused":
        params["third"] = jnp.ones(3)
    elif kind == "reduced":
        params["first"]["b"] = params["first"]["b"].astype(jnp.float16)
        params["second"]["w"] = params["second"]["w"].astype(jnp.bfloat16)
    return params


def mask_of(kind):
    return {"first": {"w": kind != "frozen", "b": True}, "second": True} if kind == "frozen" else True


def state_of(kind, rank=0):
    return {"mean": jnp.full(4, float(rank)), "steps": rank} if kind == "state" else None


def batch(worker, clock):
    rng = np.random.default_rng([worker, clock])
    return rng.normal(size=(6, 4)).astype(np.float32), rng.normal(size=(6, 4)).astype(np.float32)


def loss_of(kind):
    def loss(params, x, y):
        first, second = params["first"], params["second"]
        hidden = x @ first["w"] + first["b"].astype(jnp.float32)
        if kind == "state":
            hidden = (hidden - hidden.mean(0)) / jnp.sqrt(hidden.var(0) + 1e-5)
        w = first["w"] if kind == "tied" else second["w"].astype(jnp.float32)
        return ((jnp.tanh(hidden) @ w + second["b"] - y) ** 2).mean()

    def loss_and_state(params, state, x, y):
        seen = (x @ params["first"]["w"]).mean(0)
        return loss(params, x, y), {"mean": 0.9 * state["mean"] + 0.1 * seen, "steps": state["steps"] + 1}

    return loss_and_state if kind == "state" else loss


@functools.cache
def reference_of(kind):
    """The gradient for parameters in the vector's dtype, by JAX alone."""
    few = {"first.b": jnp.float16, "second.w": jnp.bfloat16} if kind == "reduced" else {}

    def loss(trained, frozen, x, y):
        params = {}
        for name, value in {**trained, **frozen}.items():
            outer, _, inner = name.partition(".")
            if inner:
                params.setdefault(outer, {})[inner] = value.astype(few.get(name, jnp.float32))
        given = loss_of(kind)
        return given(params, state_of(kind), x, y)[0] if kind == "state" else given(params, x, y)

    return jax.jit(jax.grad(loss))


def gradient_for(kind, layout, first):
    """The gradient of one worker's step; frozen leaves are the first worker's everywhere."""
    frozen = {"first.w": params_of(kind, first)["first"]["w"]} if kind == "frozen" else {}

    def gradient(w, worker, clock):
        found = reference_of(kind)({k: np.array(v) for k, v in layout.views(w).items()}, frozen, *batch(worker, clock))
        result = np.zeros_like(w)
        for name, into in layout.views(result).items():
            into[...] = np.asarray(found[name])
        return result

    return gradient


@functools.cache
def model_of(kind, rank, servers):
    """One for all runs with so many servers, as frozen leaves become the first worker's."""
    return psgd.jax.wrap(params_of(kind, rank), loss_of(kind), state=state_of(kind, rank), trainable=mask_of(kind))


def start_of(kind, rank):
    return psgd.jax.wrap(params_of(kind, rank), trainable=mask_of(kind)).prepare()


def train(comm, kind, strategy, turns=False, **options):
    """One run: the final vector, its start, the layout; `turns` makes workers step one after the other."""
    model = model_of(kind, comm.rank, int(STRATEGIES[strategy].servers))
    model.prepare()[:] = start_of(kind, comm.rank)  # ranks start from different parameters
    connection = psgd.connect(comm, model, strategy=strategy, lr=LR, **options)
    workers = comm.Split(connection.is_server)
    with connection as ps:
        for clock in range(STEPS):
            for turn in range(ps.workers if turns else 1):
                if turns:
                    workers.Barrier()
                    if turn != ps.worker:
                        continue
                ps.overlap(6)
                loss, _ = model.value_and_grad(*batch(ps.worker, clock))
                ps.step(6, float(loss))
    workers.Free()
    for leaf in jax.tree_util.tree_leaves((model.params, model.state)):
        assert len(set(comm.allgather(np.asarray(leaf).tobytes()))) == 1, kind
    given = params_of(kind, 0)
    assert jax.tree_util.tree_structure(model.params) == jax.tree_util.tree_structure(given)
    same = jax.tree_util.tree_map(lambda a, b: (a.dtype, a.shape) == (b.dtype, b.shape), model.params, given)
    assert all(jax.tree_util.tree_leaves(same)), kind
    final = model.prepare().copy()
    assert len(set(comm.allgather(final.tobytes()))) == 1
    return final, start_of(kind, connection.servers), model.layout


def close(kind, got, wanted, start):
    assert np.abs(wanted - start).max() > 1e-3, f"{kind}: it was trained"
    near = ROUNDING if kind == "reduced" else 2e-6
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=near, err_msg=kind)


@pytest.mark.ranks(3, timeout=110)
@pytest.mark.parametrize("strategy", ["sync", "allreduce", "averaging", "easgd", "hogwild"])
def test_strategies_without_chance(comm, strategy):
    for kind in KINDS:
        got, start, layout = train(comm, kind, strategy, strategy == "hogwild", **expected.OPTIONS.get(strategy, {}))
        servers = int(strategy == "sync")
        if comm.rank == 0:  # the others have the same bits
            gradient = gradient_for(kind, layout, servers)
            wanted = expected.without_chance(
                strategy, start, comm.size - servers, gradient, lr=LR, steps=STEPS, samples=6
            )
            close(kind, got, wanted, start)
        comm.Barrier()


@pytest.mark.ranks(3, timeout=110)
@pytest.mark.parametrize("strategy", ["async", "softsync", "ssp"])
def test_strategies_whose_order_is_recorded(comm, strategy, tmp_path):
    for kind in KINDS:
        path = comm.bcast(str(tmp_path / f"{kind}.jsonl"))
        got, start, layout = train(comm, kind, strategy, record=path, **expected.OPTIONS.get(strategy, {}))
        if comm.rank == 0:
            wanted = expected.by_record(path, start, 2, gradient_for(kind, layout, 1), lr=LR, samples=6)
            close(kind, got, wanted, start)
        comm.Barrier()


@pytest.mark.ranks(2)
def test_decentralized_takes_the_right_gradients(comm):
    """Updates arrive by chance and in parts: each step's gradient is checked, and that all end alike and nearer."""
    for kind in KINDS:
        model = model_of(kind, comm.rank, 0)
        model.prepare()[:] = start_of(kind, comm.rank)
        gradient = gradient_for(kind, model.layout, 0)
        with psgd.connect(comm, model, strategy="decentralized", lr=LR) as ps:
            first = ps.params.copy()
            for clock in range(STEPS):
                before = ps.params.copy()
                _, grads = model.value_and_grad(*batch(ps.worker, clock))
                model.gather()
                near = 2.0**-8 if kind == "reduced" else 1e-6
                wanted = gradient(before, ps.worker, clock)
                np.testing.assert_allclose(ps.grads, wanted, rtol=1e-5, atol=near, err_msg=kind)
                model.grads = grads
                ps.step(6)
        final = model.prepare()
        assert len(set(comm.allgather(final.tobytes()))) == 1, kind
        assert np.abs(final - first).max() > 1e-4, kind


def test_every_strategy_is_here():
    tested = {"sync", "allreduce", "averaging", "easgd", "hogwild", "async", "softsync", "ssp", "decentralized"}
    assert set(STRATEGIES) == tested


@pytest.mark.ranks(3, timeout=110)
@pytest.mark.parametrize("strategy", ["allreduce", "async"])
def test_states_of_all_ranks_after_a_run(comm, strategy):
    for mode in ("average", "broadcast", "local"):
        model = psgd.jax.wrap(
            params_of("state", 0), loss_of("state"), state=state_of("state", comm.rank), final_state=mode
        )
        own = None
        with psgd.connect(comm, model, strategy=strategy, lr=LR) as ps:
            for clock in range(2 + ps.worker):
                model.value_and_grad(*batch(ps.worker, clock))
                ps.step(6)
            own = np.array(model.state["mean"])
        workers = [each for each in comm.allgather(own) if each is not None]
        assert not np.allclose(workers[0], workers[1])
        mine = workers[0] if own is None else own
        expected = {"average": np.mean(workers, axis=0), "broadcast": workers[0], "local": mine}[mode]
        np.testing.assert_allclose(model.state["mean"], expected, rtol=1e-6, atol=1e-7, err_msg=mode)
        first = ps.servers  # whose state all start from
        count = first + 2 + (ps.mesh.index if mode == "local" and ps.is_worker else 0)
        assert model.state["steps"] == count, mode


@pytest.mark.ranks(2)
def test_a_run_that_resumes_has_each_workers_own_state(comm, tmp_path):
    options = {"checkpoint_dir": comm.bcast(str(tmp_path / "saved")), "checkpoint_every": 2}

    def start(**more):
        model = psgd.jax.wrap(params_of("state", 0), loss_of("state"), state=state_of("state"), final_state="local")
        return model, psgd.connect(comm, model, strategy="allreduce", lr=LR, **options, **more)

    model, connection = start()
    with connection as ps:
        for clock in range(2):
            model.value_and_grad(*batch(ps.worker, clock))
            ps.step(6)
    again, connection = start(resume=True)
    with connection as ps:
        np.testing.assert_array_equal(again.state["mean"], model.state["mean"])
        assert again.state["steps"] == 2 and ps.clock == 2
        np.testing.assert_array_equal(ps.params, model.prepare())
    assert not np.allclose(*comm.allgather(np.array(again.state["mean"])))


@pytest.mark.ranks(2)
def test_ranks_with_other_leaves_or_another_state_are_refused_alike(comm):
    more = comm.rank
    for params, state, what in (
        ({"w": np.ones(4 + 16 * more)}, {}, "size"),
        ({"w": np.ones(4 + more)}, {}, "layout"),
        ({("v", "w")[more]: np.ones(4)}, {}, "layout"),
        ({"w": np.ones(4)}, {"n": np.zeros(1 + more)}, "model"),
        ({"w": jnp.ones(4, (jnp.float32, jnp.bfloat16)[more])}, {}, "model"),
    ):
        model = psgd.jax.wrap(params, state=state)
        with pytest.raises(psgd.ContractError, match=f"all ranks must pass the same {what}") as refused:
            psgd.connect(comm, model, strategy="allreduce")
        assert len(set(comm.allgather(str(refused.value)))) == 1


WRONG = """
import jax.numpy as jnp, psgd
from mpi4py import MPI

psgd.abort_on_exception()
case = {case!r}
model = psgd.jax.wrap(
    {{"w": jnp.arange(4) if case == "integers" else jnp.ones(4)}},
    lambda params, state, x: (params["w"].sum() * x, {{"n": state["n"], "more": x}}),
    state={{"n": jnp.zeros(1)}},
)
with psgd.connect(MPI.COMM_WORLD, model, strategy="allreduce") as ps:
    model.value_and_grad(1.0)
    ps.step()
"""


@pytest.mark.one_mpi
@pytest.mark.job
@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("integers", "psgd.jax.wrap: w: expected float32, float64, float16 or bfloat16, got int32"),
        ("state", "psgd.jax: loss_fn: expected a new state of the structure PyTreeDef({'n': *}), got PyTreeDef({"),
    ],
    ids=["integers", "state"],
)
def test_what_is_wrong_is_one_message_and_exit_code_2(job, case, message):
    result = job(2, WRONG.format(case=case), timeout=60)
    said = {line.partition("Error: ")[2] for line in result.stderr.splitlines() if re.search(r"psgd\S+Error: ", line)}
    assert result.returncode == 2, result.stderr
    assert len(said) == 1 and message in said.pop(), result.stderr
    assert "JAX_TRACEBACK" not in result.stderr, result.stderr
