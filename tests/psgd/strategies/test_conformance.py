"""What every strategy's worker keeps to, whatever it exchanges: one list of tests for all names of the catalog.

A strategy that is added to the catalog is tested here with its default options and, where it can, compressed;
`FORMS` has further options.
"""

import time

import numpy as np
import pytest

import psgd
from psgd import strategies
from psgd.kernels import codecs
from psgd.kernels.errors import PeerLostError
from psgd.metrics.run_metrics import RunMetrics
from psgd.strategies import catalog
from psgd.strategies.easgd.easgd import ORDERS

DEFAULT = {"decentralized": {"density": 0.5}}  # it compresses by default, too much for vectors as short as these
FORMS = {
    "softsync": [{"softsync": 2}],
    "ssp": [{"staleness": 1}],
    "averaging": [{"period": 2, "outer_momentum": 0.5}],
    "easgd": [{"easgd_order": order, "period": 2} for order in ORDERS],
    "hogwild": [{"count_lost": True}],
    "decentralized": [{"peers": "pairs"}, {"peers": "ring", "compress": "none"}],
}
NAMES, CODECS = tuple(strategies.STRATEGIES), tuple(codecs.CODECS)


def forms_of(name):
    """All options to try; each strategy that can compress has another codec."""
    codec = CODECS[NAMES.index(name) % len(CODECS)]
    compressed = [{"compress": codec, "density": 0.5}] if strategies.STRATEGIES[name].compressible else []
    accumulated = {**DEFAULT.get(name, {}), "accumulate": 2}
    return [DEFAULT.get(name, {}), *FORMS.get(name, []), *compressed, accumulated]


ALL = [(name, form) for name in NAMES for form in forms_of(name)]
every_form = pytest.mark.parametrize(
    ("name", "form"), ALL, ids=["-".join([name, *map(str, form.values())]) for name, form in ALL]
)


def workers_of(comm, name):
    """How many of the ranks work by default."""
    return comm.size - catalog.default_servers(name, comm.size)


def options_of(comm, name, form):
    if form.get("softsync", 1) > workers_of(comm, name):
        pytest.skip("not with so few workers")
    if comm.size == 1 and "compress" in form:
        pytest.skip("a single rank sends nothing")
    alone = {"density": None} if comm.size == 1 and "density" in form else {}
    return {"strategy": name, "lr": 0.05} | form | alone


def start_of(comm, n, dtype):
    """Only the first worker's values count."""
    return np.cos(np.arange(n)).astype(dtype)


def towards(params, worker, clock):
    """The gradient of a bowl round 3, a little different for each worker and step."""
    return params - 3 + np.sin(np.arange(params.size) + worker + clock) / 64


def steps_of(worker):
    """Different for each; one has none."""
    return [40, 47, 0, 44, 41][worker]


def samples_of(worker, clock):
    return (worker + clock) % 4


def pushes_of(worker, every):
    """Groups of so many steps, the last perhaps of fewer, in which there were samples."""
    steps = range(steps_of(worker))
    return sum(any(samples_of(worker, clock) for clock in steps[at : at + every]) for at in steps[::every])


@pytest.mark.ranks(1, 2, 3, 5)
@every_form
@pytest.mark.parametrize(("dtype", "n"), [("float32", 1), ("float64", 67)])
@pytest.mark.both_mpis_whole("name")
def test_a_run_keeps_the_contract_of_a_worker(comm, name, form, dtype, n):
    options = options_of(comm, name, form)
    start = start_of(comm, n, dtype)
    connection = psgd.connect(comm, start.copy(), **options)
    group = comm.Split(connection.mesh.role == "server")
    first = comm.size > 1 and connection.mesh.role != "server" and connection.mesh.index == 0
    mine = connection.params
    assert (connection.workers, connection.workers + connection.servers) == (workers_of(comm, name), comm.size)
    began = time.perf_counter()
    with connection as ps:
        params, grads = ps.params, ps.grads
        np.testing.assert_array_equal(params, start)
        assert params.dtype == grads.dtype == dtype and params.shape == grads.shape == (n,)
        assert ps.version == 0 and ps.waited_s == 0 and not ps.stop
        group.Barrier()  # with hogwild another's step may show in the parameters at once
        version = waited = 0.0
        for clock in range(steps_of(ps.worker)):
            if samples := samples_of(ps.worker, clock):
                ready = ps.overlap(samples) if clock % 2 else None
                ps.grads[:] = towards(ps.params, ps.worker, clock)
                if ready is not None:
                    ready(range(n))
            ps.step(samples, 0.5)
            assert ps.params is params and ps.grads is grads, "the vectors stay the same ones"
            assert ps.version >= version, "the version never goes back"
            assert waited <= ps.waited_s <= time.perf_counter() - began
            version, waited = ps.version, ps.waited_s
            if first and clock == 20:
                ps.report(0.5, 0.25)
            assert not ps.stop, "nothing asked to stop"
        assert ps.clock == steps_of(ps.worker)
    group.Free()
    assert connection.params is mine, "the caller's vector has the final parameters"
    assert len(set(comm.allgather(mine.tobytes()))) == 1, "all ranks have the same final parameters, whole"
    assert (connection.is_main, connection.is_worker) == (comm.rank == 0, not connection.is_server)
    if not connection.is_server:
        assert np.linalg.norm(mine - 3) < 0.75 * np.linalg.norm(start - 3), "the steps go down the gradient"
    counts = comm.allgather((connection.bytes_sent, connection.bytes_received))
    assert sum(sent for sent, _ in counts) == sum(received for _, received in counts)
    shares = name == "hogwild" or options.get("easgd_order") in ("async", "hogwild")
    if connection.workers > 1 or connection.servers:
        assert (sum(sent for sent, _ in counts) >= mine.nbytes) != shares, "what travels is counted; memory is shared"
    else:
        assert counts == [(0, 0)]
    if comm.rank == 0:
        metrics = connection.metrics
        taken = [pushes_of(w, form.get("accumulate", 1)) for w in range(connection.workers)]
        assert metrics.pushes == taken
        assert metrics.samples == sum(samples_of(w, c) for w in range(len(taken)) for c in range(steps_of(w)))
        assert metrics.loss == 0.5
        assert comm.size == 1 or (metrics.accuracy, metrics.test_loss) == (0.5, 0.25)


@pytest.mark.ranks(1, 2, 3, 5)
@every_form
@pytest.mark.both_mpis_whole("name")
def test_a_report_waits_for_nobody_and_a_target_stops_all(comm, name, form):
    options, limit = options_of(comm, name, form), time.monotonic() + 20
    metrics = RunMetrics(workers_of(comm, name), target_accuracy=0.75)
    connection = psgd.connect(comm, np.zeros(3), metrics=metrics, **options)
    group = comm.Split(connection.mesh.role == "server")
    with connection as ps:
        ps.step()
        if ps.worker == 0:  # the others are outside psgd until it has reported
            for accuracy in (0.125, 0.25, 0.5):
                ps.report(accuracy, 1.0)
        group.Barrier()
        while not ps.stop:
            ps.step()
            if ps.worker == 0 and ps.clock == 9:
                ps.report(0.75, 0.25)
            assert time.monotonic() < limit
        assert ps.worker or ps.clock >= 9
        assert not ps.leaving
    group.Free()
    assert comm.rank or (metrics.accuracy, metrics.test_loss, metrics.stop) == (0.75, 0.25, True)


@pytest.mark.ranks(1, 2, 3, 5)
@every_form
@pytest.mark.both_mpis_whole("name")
def test_all_reports_of_all_workers_arrive_once(comm, name, form):
    """Also several between two exchanges, before the first step and after the last."""
    told = []
    metrics = RunMetrics(
        workers_of(comm, name), lambda seen, event: told.append((event, seen.accuracy, seen.test_loss))
    )
    with psgd.connect(comm, np.zeros(3), metrics=metrics, **options_of(comm, name, form)) as ps:
        for clock in range(6):
            for part in range(clock % 3):
                ps.report((8 * ps.worker + clock) / 64, float(part))
            ps.step()
        ps.report(1.0, float(ps.worker))
        ps.report(0.75, float(ps.worker))
    workers = range(workers_of(comm, name))
    expected = [((8 * w + clock) / 64, part) for w in workers for clock in range(6) for part in range(clock % 3)]
    expected += [(accuracy, w) for w in workers for accuracy in (1.0, 0.75)]
    if comm.rank == 0:
        assert sorted(each[1:] for each in told if each[0] == "eval") == sorted(expected)


@pytest.mark.ranks(2, 3, 5)
@every_form
@pytest.mark.both_mpis_whole("name")
def test_an_exception_in_the_block_is_lost_contact_elsewhere(comm, name, form):
    connection = psgd.connect(comm, np.zeros(3), **options_of(comm, name, form))
    worker = 0 if comm.size == 3 else connection.workers - 1
    bad = connection.mesh.role == "worker" and connection.mesh.index == worker
    limit = time.monotonic() + 20

    def loop():
        with connection as ps:
            while ps.clock < 3 or not bad:
                ps.step()
                assert time.monotonic() < limit
            raise KeyError("boom")

    with pytest.raises(KeyError if bad else PeerLostError) as caught:
        loop()
    assert bad or f"worker {worker} left psgd.connect with an error" in str(caught.value)
    comm.Barrier()


def train(comm, options, until):
    """Trains until all have saved, after that step of the first worker or soon; clock, version and parameters then."""
    params, ended = np.cos(np.arange(67)), (0, 0)
    with psgd.connect(comm, params, **options) as ps:
        while not ps.stop:
            if ps.worker == 0 and ps.clock == until:
                ps.save(stop=True)
            ps.grads[:] = towards(ps.params, ps.worker, ps.clock)
            ps.step(1 + ps.worker, 1.0)
        ended = ps.clock, ps.version
    assert ps.leaving
    return *ended, params


@pytest.mark.ranks(1, 2, 3, 5)
@every_form
@pytest.mark.both_mpis_whole("name")
def test_a_checkpoint_is_all_there_is_to_know(comm, name, form, tmp_path):
    """A run that goes on from it and ends at once ends where the first one did, with other numbers of workers too."""
    options = options_of(comm, name, form) | {"checkpoint_dir": str(tmp_path / "run")}
    clock, version, final = train(comm, options, 4)
    params = np.full_like(final, np.nan)
    with psgd.connect(comm, params, resume=True, **options) as ps:
        assert (ps.clock, ps.version) == (clock, version)
    np.testing.assert_allclose(params, final, rtol=0, atol=1e-12 if form.get("peers") == "pairs" else 0)
    fewer = comm.Split(comm.rank == comm.size - 1)
    if comm.rank < comm.size - 1 and form.get("softsync", 1) < max(2, comm.size - 1):
        params = np.full_like(final, np.nan)
        with psgd.connect(fewer, params, resume=True, **options) as ps:
            np.testing.assert_array_equal(ps.grads, 0)
        added = fewer.size == 1 and "density" in form and not catalog.find(name).servers  # what was left to send
        if not added:
            np.testing.assert_allclose(params, final, rtol=0, atol=1e-12)  # a mean of others may round
    fewer.Free()
