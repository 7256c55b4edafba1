"""The options of a run: one place each, and light to import."""

import subprocess
import sys

from harness import mpi

from psgd.config import TrainConfig, configure, options


def test_the_strategys_own_options_lie_apart_and_the_flat_form_has_all():
    config = configure(strategy="ssp", staleness=5, epochs=3)
    assert (config.epochs, config.own) == (3, {"staleness": 5})
    flat = config.flat()
    assert set(flat) == set(options())
    assert (flat["staleness"], flat["period"], flat["epochs"]) == (5, None, 3)


def test_each_option_says_what_it_is():
    for name, option in options().items():
        assert option.help.rstrip().endswith((".", "0")) and len(option.help) < 250, name
        assert option.default is None or option.check(name, option.default) == option.default, name


def test_defaults_are_those_of_the_options():
    assert TrainConfig() == configure()
    assert {name: value for name, value in TrainConfig().flat().items() if value is not None} == {
        name: option.default for name, option in options().items() if option.default is not None
    }


def test_the_catalogs_load_nothing_heavy():
    code = """
import sys
import psgd.config, psgd.strategies.catalog, psgd.strategies.requirements, psgd.optim.catalog, psgd.nn.catalog
import psgd.compression.catalog, psgd.kernels.codecs.catalog, psgd.collectives.algorithms.catalog, psgd.launch.options
assert not {"numpy", "mpi4py", "numba", "cupy"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], env=mpi.environment("none"), check=True, timeout=30)
