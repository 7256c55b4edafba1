"""Modules on a GPU: the same views, and under every strategy the numbers of the same run on the host."""

import numpy as np
import pytest
from harness.device import cupy

import psgd
from psgd.strategies import STRATEGIES

torch = pytest.importorskip("torch")
from harness.torch_cases import KINDS, batch, module_of  # noqa: E402
from harness.torch_gpu import gpu, hogwild_in_turns, loss_on, on_host  # noqa: E402

pytestmark = pytest.mark.gpu
nn = torch.nn
LR, STEPS = 0.05, 4
OPTIONS = {
    "averaging": {"period": 2},
    "easgd": {"period": 2, "easgd_order": "sync", "momentum": 0.0},
    "softsync": {"softsync": 2},
    "ssp": {"staleness": 1},
    "decentralized": {"compress": "none", "window": 1},
}


def everywhere_the_same(comm, model):
    assert len(set(comm.allgather(on_host(model.params).tobytes()))) == 1
    for name, p in model.module.named_parameters():
        assert len(set(comm.allgather(p.detach().cpu().double().numpy().tobytes()))) == 1, name


def train(comm, kind, strategy, device, rule="sgd", dtype=None, **options):
    """One run on the host or on the GPU; workers take turns where the order of steps counts. The final vector."""
    torch.set_num_threads(1)
    model = psgd.torch.wrap(module_of(kind, comm.rank).to(device, dtype))
    connection = psgd.connect(comm, model, strategy=strategy, lr=LR, rule=rule, **options)
    workers = comm.Split(connection.is_server)
    with connection as ps:
        for clock in range(STEPS):
            for turn in range(ps.workers if strategy == "hogwild" else 1):
                if strategy == "hogwild":
                    workers.Barrier()
                    if turn != ps.worker:
                        continue
                model.module.zero_grad()
                ps.overlap(6)
                loss_on(kind, model.module, ps.worker, clock).backward()
                ps.step(6)
    workers.Free()
    everywhere_the_same(comm, model)
    assert all(p.device == model.device for p in model.module.parameters())
    return on_host(model.params)


def close(got, expected):
    exact = got.dtype == np.float64
    np.testing.assert_allclose(got, expected, rtol=1e-9 if exact else 1e-5, atol=1e-10 if exact else 2e-6)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", ["sync", "allreduce", "averaging", "easgd"])
def test_strategies_without_chance(comm, strategy, kind):
    device, options = gpu(), OPTIONS.get(strategy, {})
    expected = train(comm, kind, strategy, "cpu", **options)
    close(train(comm, kind, strategy, device, **options), expected)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("kind", KINDS)
def test_hogwild_in_turns(comm, kind):
    """A worker computes on the node's parameters as they were after its own last step."""
    got = train(comm, kind, "hogwild", gpu())
    layout = psgd.torch.wrap(module_of(kind)).layout

    def sgd(module):
        return torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=LR)

    close(got, hogwild_in_turns(kind, torch.float32, layout, comm.size, STEPS, sgd))


@pytest.mark.ranks(3)
@pytest.mark.parametrize("kind", ["plain", "batchnorm"])
@pytest.mark.parametrize("strategy", ["async", "softsync", "ssp"])
def test_strategies_whose_order_is_recorded(comm, strategy, kind, tmp_path):
    path = comm.bcast(str(tmp_path / "order.jsonl"))
    got = train(comm, kind, strategy, gpu(), record=path, **OPTIONS.get(strategy, {}))
    close(got, train(comm, kind, strategy, "cpu", replay=path, **OPTIONS.get(strategy, {})))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", ["plain", "batchnorm"])
def test_decentralized(comm, kind):
    got = train(comm, kind, "decentralized", gpu(), **OPTIONS["decentralized"])
    start = on_host(psgd.torch.wrap(module_of(kind, 0)).params)
    assert np.abs(got - start).max() > 1e-3, "it was trained"


def test_every_strategy_is_here():
    tested = {"sync", "allreduce", "averaging", "easgd", "hogwild", "async", "softsync", "ssp", "decentralized"}
    assert set(STRATEGIES) == tested


@pytest.mark.ranks(3)
@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("sync", {"compress": "topk", "density": 0.5}),
        ("sync", {"accumulate": 2}),
        ("allreduce", {"accumulate": 2}),
        ("allreduce", {"rule": "adam"}),
        ("easgd", {"period": 2, "easgd_order": "round-robin"}),
    ],
)
def test_options_of_strategies(comm, strategy, options):
    kind = "plain" if "rule" in options else "batchnorm"  # Adam would follow the noise of gradients that are 0
    expected = train(comm, kind, strategy, "cpu", dtype=torch.float64, **options)
    close(train(comm, kind, strategy, gpu(), dtype=torch.float64, **options), expected)


@pytest.mark.ranks(3)
def test_several_servers_and_one_whose_module_is_on_the_host(comm):
    expected = train(comm, "batchnorm", "sync", "cpu", servers=2)
    close(train(comm, "batchnorm", "sync", gpu(), servers=2), expected)
    close(train(comm, "batchnorm", "sync", "cpu" if comm.rank == 0 else gpu(), servers=2), expected)


@pytest.mark.ranks(1)
@pytest.mark.parametrize("rule", ["sgd", "momentum", "nesterov", "adam"])
def test_one_rank_works_in_the_modules_own_memory(comm, rule):
    kind = "plain" if rule == "adam" else "batchnorm"
    expected = train(comm, kind, "sync", "cpu", rule=rule, dtype=torch.float64)
    close(train(comm, kind, "sync", gpu(), rule=rule, dtype=torch.float64), expected)
    model = psgd.torch.wrap(module_of("plain").to(gpu()))
    xp = cupy()
    with psgd.connect(comm, model) as ps:
        assert isinstance(ps.params, xp.ndarray) and isinstance(ps.grads, xp.ndarray)
        for name, p in model.module.named_parameters():
            assert p.data_ptr() == model.layout.views(ps.params)[name].data.ptr
            assert p.grad.data_ptr() == model.layout.views(ps.grads)[name].data.ptr


@pytest.mark.ranks(3)
@pytest.mark.parametrize("strategy", ["allreduce", "sync"])
def test_any_stream_is_the_streams_of_a_step(comm, strategy):
    """All of it on a side stream, on which every kernel of the module comes late."""
    device = gpu()
    expected = train(comm, "batchnorm", strategy, "cpu")
    side = torch.cuda.Stream(device)
    model = psgd.torch.wrap(module_of("batchnorm", comm.rank).to(device))
    side.wait_stream(torch.cuda.current_stream(device))
    before = cupy().cuda.get_current_stream().ptr
    with torch.cuda.stream(side), psgd.connect(comm, model, strategy=strategy, lr=LR) as ps:
        for clock in range(STEPS):
            torch.cuda._sleep(20_000_000)
            model.zero_grad()
            loss = loss_on("batchnorm", model.module, ps.worker, clock)
            torch.cuda._sleep(20_000_000)
            loss.backward()
            ps.step(6)
    torch.cuda.current_stream(device).wait_stream(side)
    assert cupy().cuda.get_current_stream().ptr == before
    close(on_host(model.params), expected)
    everywhere_the_same(comm, model)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes(comm, dtype):
    kind, device = getattr(torch, dtype), gpu()
    module = module_of("plain", comm.rank).to(device, kind)
    model = psgd.torch.wrap(module)
    reduced = kind != torch.float64
    assert model.params.dtype == (np.float32 if reduced else np.float64)
    with psgd.connect(comm, model, strategy="allreduce", lr=2.0**-12) as ps:
        start = on_host(ps.params)
        for _ in range(8):  # steps too short for the parameters to show
            for p in module.parameters():
                p.grad = torch.ones_like(p)
            ps.step(1)
    views, first = model.layout.views(on_host(model.params)), model.layout.views(start)
    for name, p in module.named_parameters():
        np.testing.assert_allclose(views[name], first[name] - 2.0**-9, rtol=0, atol=1e-6)
        assert torch.equal(p.detach().cpu(), torch.from_numpy(views[name].copy()).to(kind))
    everywhere_the_same(comm, model)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("strategy", ["allreduce", "sync"])
@pytest.mark.parametrize("mode", ["average", "broadcast", "local"])
def test_buffers(comm, strategy, mode):
    module = module_of("batchnorm", comm.rank).to(gpu())
    model = psgd.torch.wrap(module, buffers=mode)
    own = None
    with psgd.connect(comm, model, strategy=strategy, lr=LR) as ps:
        for clock in range(2):
            model.zero_grad()
            loss_on("batchnorm", module, ps.worker, clock).backward()
            ps.step(6)
        own = module[1].running_mean.cpu().numpy().copy()
    workers = [each for each in comm.allgather(own) if each is not None]
    mine = workers[0] if own is None else own
    expected = {"average": np.mean(workers, axis=0), "broadcast": workers[0], "local": mine}[mode]
    np.testing.assert_allclose(module[1].running_mean.cpu().numpy(), expected, rtol=1e-6, atol=1e-7)
    assert module[1].num_batches_tracked.item() == 2 and module[1].running_mean.device == model.device


@pytest.mark.ranks(2)
@pytest.mark.parametrize("then", ["cuda", "cpu"])
def test_a_run_goes_on_from_a_checkpoint_on_either_side(comm, then, tmp_path):
    folder = comm.bcast(str(tmp_path))
    expected = train(comm, "batchnorm", "allreduce", "cpu", rule="momentum")
    for part, place in enumerate((gpu(), gpu() if then == "cuda" else "cpu")):
        module = module_of("batchnorm", comm.rank).to(place)
        model = psgd.torch.wrap(module)
        options = {"checkpoint_dir": folder, "checkpoint_every": 2, "resume": part > 0}
        with psgd.connect(comm, model, strategy="allreduce", lr=LR, rule="momentum", **options) as ps:
            assert ps.clock == 2 * part
            for clock in range(ps.clock, 2 * part + 2):
                model.zero_grad()
                loss_on("batchnorm", module, ps.worker, clock).backward()
                ps.step(6)
    close(on_host(model.params), expected)


def test_ranges_are_announced_from_the_end_to_the_start():
    module = module_of("plain").to(gpu())
    model, seen = psgd.torch.wrap(module), []
    model.announce(lambda part: seen.append((part.start, part.stop, on_host(model.grads[part.start : part.stop]))))
    module.zero_grad()
    loss_on("plain", module, 0, 0).backward()
    torch.cuda.synchronize()
    model.gather()
    assert seen[0][1] == model.layout.size and seen[-1][0] == 0
    np.testing.assert_array_equal(np.concatenate([values for *_, values in reversed(seen)]), on_host(model.grads))
    assert on_host(model.grads).any()


@pytest.mark.ranks(1)
def test_a_captured_graph_computes_in_the_vectors(comm):
    """A loop may replay its forward and backward pass as a CUDA graph: nothing moves while it is trained."""
    device = gpu()
    expected = train(comm, "plain", "sync", "cpu")
    module = module_of("plain").to(device)
    model = psgd.torch.wrap(module)
    x, y = (each.to(device) for each in batch(0, 0))
    with psgd.connect(comm, model, lr=LR) as ps:
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(2):
                model.zero_grad()
                nn.functional.mse_loss(module(x), y).backward()
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model.zero_grad()
            nn.functional.mse_loss(module(x), y).backward()
        for clock in range(STEPS):
            for into, value in zip((x, y), batch(0, clock), strict=True):
                into.copy_(value)
            graph.replay()
            ps.step(6)
    close(on_host(model.params), expected)


@pytest.mark.ranks(2)
def test_a_block_left_with_an_error_leaves_a_module_that_works(comm):
    module = module_of("plain", comm.rank).to(gpu())
    model = psgd.torch.wrap(module)
    with pytest.raises(Exception, match=r"stop here|another worker|lost"):  # noqa: PT012, SIM117
        with psgd.connect(comm, model, strategy="averaging", period=100) as ps:
            loss_on("plain", module, 0, 0).backward()
            ps.step(6)
            raise RuntimeError("stop here")
    assert torch.isfinite(module(torch.ones(2, 4, device=model.device))).all()
    assert module[0].weight.data_ptr() == model.layout.views(model.params)["0.weight"].data.ptr


def test_moved_there_and_back():
    module = module_of("frozen")
    model = psgd.torch.wrap(module)
    before = model.params.copy()
    model.to(gpu())
    assert {p.device.type for p in module.parameters()} == {"cuda"}
    np.testing.assert_array_equal(on_host(model.params), before)
    assert module[0].bias.data_ptr() == model.layout.views(model.params)["0.bias"].data.ptr
    model.to("cpu")
    np.testing.assert_array_equal(model.params, before)


def test_parameters_on_several_devices_are_refused():
    from psgd.kernels.errors import UsageError

    module = module_of("plain")
    module[2].to(gpu())
    with pytest.raises(
        UsageError, match=r"2.weight: expected all trainable parameters on one device, got cuda:0 and cpu in"
    ):
        psgd.torch.wrap(module)
