"""A module's stage without flushes as what a run trains, on one rank; on several, see test_module_in_pieces.py."""

import numpy as np
import pytest

import psgd
from psgd.collectives.communicator import Communicator
from psgd.config import TrainConfig
from psgd.data import load
from psgd.data.normalization import validate
from psgd.parallel.mesh import ProcessMesh
from psgd.runtime.faults import Injector
from psgd.training.pieces.continuous_passes import NumberedStep
from psgd.training.pieces.continuous_training import ContinuousTrainer, plan

torch = pytest.importorskip("torch")
from psgd.training.pieces.continuous_module import ContinuousModule  # noqa: E402 -- where PyTorch is

nn = torch.nn


@pytest.mark.ranks(1)
def test_its_backend_takes_many_steps_at_once(comm):
    dataset, config = load("digits"), TrainConfig(batch_size=20)
    whole = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()
    alone = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()
    alone.load_state_dict(whole.state_dict())
    with ProcessMesh(comm, pipe=1) as mesh:
        part = psgd.torch.pipeline(
            whole, mesh.pipe, cuts=(), sample=dataset.sample_shape, batch=20, schedule="pipedream"
        )
        schedule, epoch = plan(part.pipeline, "pipedream", config, mesh, 20, 200)
        model = ContinuousModule(part, Communicator(mesh.tensor), mesh, schedule, list(whole.state_dict()))
        model.epoch = epoch
        assert epoch == 10 and model.trainer is ContinuousTrainer and model.expected_bubble(schedule) == 0
        backend = model.backend(config, dataset, validate(dataset))
        params = model.vector(config, serves=False)
        backend.prepare(params)
        backend.bind(params, part.grads)
        grads, losses = part.grads, []

        def take(step, loss):
            losses.append(loss)
            params[:] -= 0.1 * grads

        steps = [NumberedStep(step, step, np.arange(20 * step, 20 * step + 20)) for step in range(4)]
        backend.train(steps, take, Injector("", 0, 1, 0, False))
        x, y = dataset.train.x[:80], torch.from_numpy(np.asarray(dataset.train.y[:80], np.int64))
        statistics = validate(dataset)
        x = torch.from_numpy((np.asarray(x, np.float64) - statistics.mean) * statistics.scale)
        optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            rows = slice(20 * step, 20 * step + 20)
            loss = nn.functional.cross_entropy(alone(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            assert losses[step] == pytest.approx(loss.item(), rel=1e-4)
        for p, q in zip(whole.parameters(), alone.parameters(), strict=True):
            assert torch.allclose(p, q, rtol=1e-3, atol=1e-5)
        model.close()
