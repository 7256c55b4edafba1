"""A `nn.Sequential` in stages on real ranks, against the uncut module in one process."""

import numpy as np
import pytest
from mpi4py import MPI

import psgd
from psgd.parallel.mesh import ProcessMesh
from psgd.parallel.schedules import catalog

torch = pytest.importorskip("torch")
nn = torch.nn
CUTS = {1: (), 2: (3,), 3: (2, 5), 4: (2, 4, 6)}


def make(seed=3, dtype=torch.float32):
    torch.manual_seed(seed)
    layers = (
        nn.Flatten(),
        nn.Linear(6, 12),
        nn.ReLU(inplace=True),
        nn.Linear(12, 9),
        nn.GELU(),
        nn.Linear(9, 11, bias=False),
        nn.LayerNorm(11),
        nn.Linear(11, 5),
    )
    return nn.Sequential(*layers).to(dtype)


def samples(n, step, dtype=np.float32):
    rng = np.random.default_rng([n, step])
    return rng.standard_normal((n, 2, 3)).astype(dtype), rng.integers(0, 5, n)


def close(found, wanted):
    """Within 1e-6 of the largest element."""
    scale = max(np.abs(wanted).max(), 1e-30)
    return np.abs(found - wanted).max() <= 1e-6 * scale


def ends(comm, x, y):
    return x if comm.rank == 0 else None, y if comm.rank == comm.size - 1 else None


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("microbatches", [1, 2, 4])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
def test_gradients_and_losses_are_the_uncut_modules(comm, schedule, microbatches):
    whole = make(dtype=torch.float64)
    names = {name for name, _ in whole.named_parameters()}
    with psgd.torch.pipeline(
        make(dtype=torch.float64),
        comm,
        cuts=CUTS[comm.size],
        sample=(2, 3),
        batch=10,
        microbatches=microbatches,
        schedule=schedule,
    ) as stages:
        optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
        for step, n in enumerate((10, 9, 1, 7, 10)):
            x, y = samples(n, step, np.float64)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(whole(torch.from_numpy(x)), torch.from_numpy(y))
            loss.backward()
            assert stages.gradient(n, *ends(comm, x, y)) == pytest.approx(loss.item(), rel=1e-6)
            wanted = {name: p.grad.numpy() for name, p in whole.named_parameters()}
            for name, view in stages.layout.views(stages.grads).items():
                assert close(view, wanted[name]), (step, name)
            stages.params[:] -= 0.1 * stages.grads
            optimizer.step()
        found = [name for each in comm.allgather(list(stages.layout.views(stages.params))) for name in each]
        assert sorted(found) == sorted(names)
        x, y = samples(23, 9, np.float64)
        with torch.no_grad():
            scores = whole(torch.from_numpy(x))
        right, loss = stages.evaluate(23, *ends(comm, x, y))
        assert right == int((scores.argmax(1) == torch.from_numpy(y)).sum())
        assert loss == pytest.approx(23 * nn.functional.cross_entropy(scores, torch.from_numpy(y)).item(), rel=1e-6)
        counts = {-(-n // stages.pipeline.microbatch) for n in (10, 9, 1, 7)}
        limit = max(catalog.make(schedule, comm.size, m).in_flight_limit[comm.rank] for m in counts)
        assert 0 < stages.pipeline.counters.in_flight_max <= limit


@pytest.mark.ranks(2)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_float32_too_and_several_stages_of_a_rank(comm, schedule):
    cuts = (2, 4, 6) if schedule == "interleaved" else (3,)
    whole = make()
    x, y = samples(8, 0)
    loss = nn.functional.cross_entropy(whole(torch.from_numpy(x)), torch.from_numpy(y))
    loss.backward()
    wanted = {name: p.grad.numpy() for name, p in whole.named_parameters()}
    with psgd.torch.pipeline(
        make(), comm, cuts=cuts, sample=torch.empty(2, 3), batch=8, microbatches=4, schedule=schedule
    ) as stages:
        for _ in range(2):  # overwritten, not added to
            assert stages.gradient(8, torch.from_numpy(x), torch.from_numpy(y)) == pytest.approx(loss.item(), rel=1e-6)
            for name, view in stages.layout.views(stages.grads).items():
                assert np.abs(view - wanted[name]).max() <= 2e-6 * np.abs(wanted[name]).max(), name


@pytest.mark.ranks(2)
def test_a_rank_keeps_its_own_layers_and_the_first_values_do_not_depend_on_the_cuts(comm):
    def described():
        with torch.device("meta"):
            return make()

    values = {}
    for cuts in ((3,), (5,)):
        module = described()
        with psgd.torch.pipeline(module, comm, cuts=cuts, sample=(2, 3), batch=4, seed=5) as stages:
            own = {name for name, p in module.named_parameters() if not p.is_meta}
            assert own == {p.name for p in stages.layout.parameters}
            assert stages.params.size < sum(p.numel() for p in module.parameters())
            parts = comm.allgather({name: v.copy() for name, v in stages.layout.views(stages.params).items()})
            values[cuts] = parts[0] | parts[1]
            assert np.isfinite(stages.gradient(4, *samples(4, 0)))
    assert all(np.array_equal(values[(3,)][name], view) for name, view in values[(5,)].items())
    assert len(values[(3,)]) == len(values[(5,)]) == 9
    assert values[(3,)]["1.weight"].std() > 0.1
    real = make()
    with psgd.torch.pipeline(real, comm, cuts=(3,), sample=(2, 3), batch=4):
        for name, p in real.named_parameters():
            assert p.is_meta == ((int(name[0]) < 3) == (comm.rank == 1)), name


class Scores(nn.Module):
    """Tied to an embedding."""

    def __init__(self, table):
        super().__init__()
        self.weight = table

    def forward(self, x):
        return (x @ self.weight.T).transpose(1, 2)


def tied():
    torch.manual_seed(1)
    table = nn.Embedding(7, 6)
    return nn.Sequential(table, nn.Linear(6, 6), nn.Tanh(), Scores(table.weight))


@pytest.mark.ranks(1, 2, 3)
def test_a_parameter_of_two_stages_gets_both_gradients(comm):
    whole = tied()
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 7, (2, 5, 4))
    loss = nn.functional.cross_entropy(whole(torch.from_numpy(x)), torch.from_numpy(y))
    loss.backward()
    module = tied()
    cuts = {1: (), 2: (1,), 3: (1, 3)}[comm.size]
    sample = torch.empty(4, dtype=torch.int64)
    with psgd.torch.pipeline(module, comm, cuts=cuts, sample=sample, batch=5, microbatches=3) as stages:
        assert stages.gradient(5, x, y) == pytest.approx(loss.item(), rel=1e-6)
        views = stages.layout.views(stages.grads)
        for name in views.keys() & {"0.weight", "3.weight"}:
            wanted = whole[0].weight.grad.numpy()
            assert np.abs(views[name] - wanted).max() <= 2e-6 * np.abs(wanted).max()
        right, loss = stages.evaluate(5, x, y)
        assert 0 <= right <= 5 and loss > 0
        table = stages.layout.views(stages.params)
        held = comm.allgather([table[n].tobytes() for n in ("0.weight", "3.weight") if n in table])
        assert len({value for each in held for value in each}) == 1


@pytest.mark.ranks(2)
def test_dropout_is_by_seed_and_key(comm):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 5))
    with psgd.torch.pipeline(module, comm, cuts=(2,), sample=(6,), batch=6, microbatches=3) as stages:
        x, y = samples(6, 0)
        x = x.reshape(6, 6)
        before = torch.get_rng_state()
        losses = [stages.gradient(6, x, y, key=key) for key in (1, 2, 1)]
        assert losses[0] == losses[2] != losses[1]
        assert torch.equal(torch.get_rng_state(), before)
        assert stages.evaluate(6, x, y) == stages.evaluate(6, x, y)
        assert all(part.training for part in stages.module.modules())
        assert stages.gradient(6, x, y, key=1) == losses[0]


@pytest.mark.ranks(4)
@pytest.mark.parametrize("overlap", [False, True])
def test_copies_are_trained_along_the_data_axis(comm, overlap):
    copy, place = divmod(comm.rank, 2)
    pipe, data = comm.Split(copy, place), comm.Split(place, copy)
    whole = make(dtype=torch.float64)
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)
    with psgd.torch.pipeline(
        make(dtype=torch.float64), pipe, cuts=(3,), sample=(2, 3), batch=4, microbatches=2
    ) as stages:
        with psgd.connect(data, stages, strategy="allreduce", lr=0.1, rule="momentum", momentum=0.9) as ps:
            for step in range(4):
                x, y = samples(8, step, np.float64)
                part = slice(4 * ps.worker, 4 * ps.worker + 4)
                if overlap:
                    ps.overlap(4)
                ps.step(samples=4, loss=stages.gradient(4, x[part], y[part]))
                optimizer.zero_grad()
                nn.functional.cross_entropy(whole(torch.from_numpy(x)), torch.from_numpy(y)).backward()
                optimizer.step()
        wanted = {name: p.detach().numpy() for name, p in whole.named_parameters()}
        for name, view in stages.layout.views(stages.params).items():
            assert close(view, wanted[name]), name
    pipe.Free()
    data.Free()


def clipped(comm, sizes, cuts, folder, steps, resume, tensor=False):
    """Trains some steps with clipping; returns the whole model's parameters, by name."""
    with ProcessMesh(comm, **sizes) as mesh:
        module = make(dtype=torch.float64)
        if tensor:
            psgd.torch.cut_by_tensor(module, mesh.tensor)
        with psgd.torch.pipeline(module, mesh.pipe, cuts=cuts, sample=(2, 3), batch=4, microbatches=2) as stages:
            options = {"lr": 0.1, "rule": "momentum", "momentum": 0.9, "clip_norm": 0.05, "part": stages.part(mesh)}
            options |= {"strategy": "allreduce", "checkpoint_dir": folder, "checkpoint_every": 3, "resume": resume}
            with psgd.connect(mesh.data, stages, **options) as ps:
                while ps.clock < steps:
                    ps.step(samples=4, loss=stages.gradient(4, *samples(4, ps.clock, np.float64)))
            found = {}
            for p, view in zip(stages.layout.parameters, stages.layout.views(stages.params).values(), strict=False):
                found[p.name] = (p.slices, view.copy(), p.global_shape)
            whole = {}
            for each in mesh.world.allgather(found):
                for name, (slices, values, shape) in each.items():
                    whole.setdefault(name, np.full(shape, np.nan))[slices] = values
            return whole


@pytest.mark.ranks(2)
@pytest.mark.parametrize("tensor", [False, True])
def test_clipping_and_checkpoints_are_of_the_whole_model(comm, tmp_path, tensor):
    module = make(dtype=torch.float64)
    with psgd.connect(
        MPI.COMM_SELF,
        psgd.torch.wrap(module),
        strategy="allreduce",
        lr=0.1,
        rule="momentum",
        momentum=0.9,
        clip_norm=0.05,
    ) as ps:
        for step in range(6):
            x, y = map(torch.from_numpy, samples(4, step, np.float64))
            module.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            ps.step(samples=4)
    wanted = {name: p.detach().numpy() for name, p in module.named_parameters()}
    sizes, cuts = ({"tensor": 2}, ()) if tensor else ({"pipe": 2}, (3,))
    clipped(comm, sizes, cuts, tmp_path, 3, False, tensor)
    found = clipped(comm, {"pipe": 2}, (5,), tmp_path, 6, True)  # cut otherwise
    assert found.keys() == wanted.keys()
    for name, values in found.items():
        assert close(values, wanted[name]), name


@pytest.mark.ranks(4)
def test_each_stage_has_a_server_of_its_own(comm):
    whole = make(dtype=torch.float64)
    with ProcessMesh(comm, pipe=2, data=2) as mesh:
        module = make(dtype=torch.float64)
        with psgd.torch.pipeline(module, mesh.pipe, cuts=(3,), sample=(2, 3), batch=4, microbatches=2) as stages:
            with psgd.connect(mesh.data, stages, strategy="sync", lr=0.1, servers=1, part=stages.part(mesh)) as ps:
                for step in range(3):
                    ps.step(samples=4, loss=stages.gradient(4, *samples(4, step, np.float64)))
            optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
            for step in range(3):
                x, y = map(torch.from_numpy, samples(4, step, np.float64))
                optimizer.zero_grad()
                nn.functional.cross_entropy(whole(x), y).backward()
                optimizer.step()
            wanted = {name: p.detach().numpy() for name, p in whole.named_parameters()}
            for name, view in stages.layout.views(stages.params).items():
                assert close(view, wanted[name]), name
