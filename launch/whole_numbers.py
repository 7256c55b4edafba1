"""Whole numbers of commands, refused in the words of `psgd train` where they are none, or larger than any use."""

import contextlib
from typing import TYPE_CHECKING, Any

import click

from psgd.kernels.errors import UsageError
from psgd.runtime.option import whole

if TYPE_CHECKING:
    _Type = click.ParamType[int]
else:  # older versions are not generic
    _Type = click.ParamType


class Whole(_Type):
    """A whole number, at least `low`, and at most `psgd.runtime.option.LARGEST`."""

    name = "N"

    def __init__(self, low: int) -> None:
        self._option = whole(low, None, "")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number. Raises UsageError: it is none."""
        with contextlib.suppress(ValueError):  # more digits than Python reads, too
            value = int(value)
        where = "number" if param is None else "/".join(param.opts)
        try:
            return int(self._option.check(where, value))
        except UsageError as error:
            raise click.UsageError(str(error), ctx) from None
