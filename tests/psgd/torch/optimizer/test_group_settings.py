"""What travels with a push: the options that schedulers change, exactly, and nothing that cannot."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from psgd.kernels.errors import UsageError  # noqa: E402
from psgd.torch.optimizer.group_settings import GroupSettings  # noqa: E402


def adam(lr=0.1, **options):
    first, second = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    return torch.optim.AdamW([{"params": [first]}, {"params": [second], "lr": 0.3}], lr=lr, **options)


def test_what_a_scheduler_changes_arrives_exactly():
    here, there = adam(), adam()
    worker, server = GroupSettings(here, False), GroupSettings(there, False)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(here, max_lr=[0.7, 0.9], total_steps=10)
    here.step()
    scheduler.step()
    values = np.zeros(worker.size)
    worker.guarded = True
    worker.write(values)
    server.read(values)
    assert server.guarded and worker.lr == server.lr == here.param_groups[0]["lr"]
    for ours, theirs in zip(here.param_groups, there.param_groups, strict=True):
        for name in here.defaults:
            assert ours[name] == theirs[name] and type(ours[name]) is type(theirs[name]), name
    assert here.param_groups[0]["betas"] != (0.9, 0.999) and worker.size == server.size == 1 + 2 * 5


def test_a_rate_that_is_a_tensor():
    here, there = (adam(lr=torch.tensor(0.1), foreach=False) for _ in range(2))
    here.param_groups[0]["lr"].fill_(0.5)
    kept = there.param_groups[0]["lr"]
    values = np.zeros(GroupSettings(here, False).size)
    GroupSettings(here, False).write(values)
    GroupSettings(there, False).read(values)
    assert there.param_groups[0]["lr"] is kept and kept == 0.5


@pytest.mark.parametrize(("name", "value"), [("amsgrad", True), ("maximize", True), ("foreach", False)])
def test_what_does_not_travel_must_stay(name, value):
    optimizer = adam()
    settings = GroupSettings(optimizer, False)
    optimizer.param_groups[1][name] = value
    with pytest.raises(UsageError, match=f"group 1: {name}: expected .* as at the start, got {value}"):
        settings.write(np.zeros(settings.size))


def test_groups_must_stay():
    optimizer = adam()
    settings = GroupSettings(optimizer, False)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    with pytest.raises(UsageError, match="parameter groups: expected 2 as at the start, got 3"):
        settings.write(np.zeros(settings.size))


def test_alike():
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": [p]} for p in parameters], lr=0.1, momentum=0.5)
    settings = GroupSettings(optimizer, True)
    values = np.zeros(settings.size)
    for group in optimizer.param_groups:
        group["lr"] = 0.05
    settings.write(values)
    assert settings.lr == 0.05
    optimizer.param_groups[1]["lr"] = 0.2
    with pytest.raises(UsageError, match=r"group 1: lr: expected 0.05 as in group 0"):
        settings.write(values)
    optimizer.param_groups[1]["lr"] = 0.05
    for group in optimizer.param_groups:
        group["momentum"] = 0.7  # psgd's rule has the one of the start
    with pytest.raises(UsageError, match=r"momentum: expected 0.5 as at the start"):
        settings.write(values)
