"""The tree of errors: whoever catches a base catches what it promises."""

import inspect

import pytest

import psgd
from psgd.kernels import errors

ALL = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("kind", ALL)
def test_all_are_psgds_own(kind):
    assert issubclass(kind, psgd.Error)
    assert kind.__doc__


def test_wrong_arguments_are_value_errors():
    values = {kind.__name__ for kind in ALL if issubclass(kind, ValueError)}
    assert values == {"UsageError", "DataError", "CheckpointError", "AgreedUsageError"}


def test_what_all_ranks_raise_alike_is_marked():
    assert issubclass(errors.AgreedUsageError, (errors.AgreedError, errors.UsageError))
    assert issubclass(errors.AgreedContractError, errors.AgreedError)
    assert issubclass(errors.AgreedContractError, errors.ContractError)
