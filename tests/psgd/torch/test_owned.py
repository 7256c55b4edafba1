"""Parameters are part of one model at a time."""

import pytest

from psgd.kernels.errors import UsageError

torch = pytest.importorskip("torch")
from psgd.torch import owned  # noqa: E402


class Owner:
    pass


def test_parameters_are_taken_as_long_as_their_owner_exists():
    module, owner = torch.nn.Linear(2, 2), Owner()
    owned.check(module)
    owned.take([module.bias], owner)
    with pytest.raises(UsageError, match="bias is part of a wrapped module already"):
        owned.check(torch.nn.Sequential(module))
    owned.check(torch.nn.Linear(2, 2))
    del owner
    owned.check(module)
