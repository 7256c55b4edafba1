"""What options stand for, in closed form."""

import numpy as np
import pytest

from psgd.config import configure
from psgd.nn.models import build
from psgd.training import preparation


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, [0.5, 0.5, 0.5]),
        ({"scale_lr": True}, [2.0, 2.0, 2.0]),
        ({"schedule": "step", "step_epochs": 2.0, "step_factor": 0.5}, [0.5, 0.25, 0.125]),
        ({"schedule": "cosine", "epochs": 4}, [0.5, 0.25, 0.0]),
        ({"warmup_epochs": 4.0}, [0.0, 0.25, 0.5]),
    ],
)
def test_the_rate_goes_by_epochs_of_the_training_set(options, wanted):
    rate = preparation.schedule(configure(lr=0.5, **options), samples=100, workers=4)
    assert [rate(samples) for samples in (0, 200, 400)] == pytest.approx(wanted, abs=1e-15)


def test_the_rule_is_the_one_by_name():
    assert preparation.rule(configure(optimizer="adam"), serves=True).name == "adam"
    chosen = preparation.rule(configure(optimizer="momentum", momentum=0.5, weight_decay=0.25), serves=False)
    assert (chosen.name, chosen.factor, chosen.weight_decay) == ("momentum", 0.5, 0.25)


def test_first_parameters_are_those_of_the_seed():
    model = build("mlp", (4,), 2, hidden=3)
    one, again, other = (preparation.first_params(configure(seed=seed), model) for seed in (5, 5, 6))
    np.testing.assert_array_equal(one, again)
    np.testing.assert_array_equal(one, model.init(5))
    assert not np.array_equal(one, other)


def test_epochs_of_a_strategys_own_options_become_samples():
    config = configure(strategy="averaging", period=4, local_from=1.5)
    assert preparation.strategy_options(config, 200) == {"period": 4, "local_from": 300.0}
    assert preparation.strategy_options(configure(), 200) == {}
