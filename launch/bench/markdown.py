"""Rows of Markdown tables, for documents."""

from collections.abc import Sequence


def line(cells: Sequence[str]) -> str:
    """One row."""
    return f"| {' | '.join(cells)} |"


def head(names: Sequence[str]) -> str:
    """The two lines above the rows."""
    return f"{line(names)}\n|{'---|' * len(names)}"
