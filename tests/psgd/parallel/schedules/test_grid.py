"""The lectures' grid cell by cell, bubbles, and grids of runs that are not in whole units."""

import re

import pytest
from harness import ROOT

from psgd.parallel.schedules import catalog, grid
from psgd.parallel.schedules.instruction import Instruction
from psgd.parallel.schedules.rehearsal import DOUBLE, Cell, rehearse

GPIPE = """\
F0 F1 F2 F3 .  .  .  .  .  .  B3 B2 B1 B0
.  F0 F1 F2 F3 .  .  .  .  B3 B2 B1 B0 .
.  .  F0 F1 F2 F3 .  .  B3 B2 B1 B0 .  .
.  .  .  F0 F1 F2 F3 B3 B2 B1 B0 .  .  ."""
"""Four stages, four microbatches: stage i from time i; backward in reverse order, the last stage first."""

ZERO_BUBBLE = """\
F0 F1 F2 .  .  X0 W0 F3 X1 W1 X2 W2 X3 W3
.  F0 F1 .  X0 F2 X1 W0 F3 X2 W1 X3 W2 W3
.  .  F0 X0 F1 X1 F2 X2 W0 F3 X3 W1 W2 W3"""

INTERLEAVED = """\
F0   F1   F0.1 F1.1 .    B0.1 .    B1.1 B0   B1
.    F0   F1   F0.1 B0.1 F1.1 B1.1 B0   B1   ."""

PIPEDREAM = """\
F0 F1 .  B0 F2 B1 F3 B2 .  B3
.  F0 B0 F1 B1 F2 B2 F3 B3 ."""


def drawn(name, ranks, microbatches, chunks=1):
    return grid.text(rehearse(catalog.make(name, ranks, microbatches, chunks)), ranks)


def test_gpipe_cell_by_cell():
    cells = rehearse(catalog.make("gpipe", 4, 4))
    assert {(cell.rank, cell.start): str(cell.instruction) for cell in cells} == {
        (rank, column): each
        for rank, line in enumerate(GPIPE.splitlines())
        for column, each in enumerate(line.split())
        if each != "."
    }
    assert grid.text(cells, 4) == GPIPE
    assert grid.bubble(cells, 4) == pytest.approx(3 / 7)


def test_expected_bubbles():
    assert grid.expected(catalog.make("1f1b", 4, 8)) == pytest.approx(3 / 11)
    assert grid.expected(catalog.make("zero-bubble", 4, 8)) == pytest.approx(3 / 27)
    assert grid.expected(catalog.make("inference", 1, 8)) == 0


def test_others():
    assert drawn("zero-bubble", 3, 4) == ZERO_BUBBLE
    assert drawn("interleaved", 2, 2, 2) == INTERLEAVED
    assert drawn("pipedream", 2, 4) == PIPEDREAM


def test_the_documentation_shows_what_is_drawn():
    page = (ROOT / "docs/schedules.md").read_text()
    (block,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    shown = {part.split()[0]: part[14:].replace("\n" + 14 * " ", "\n").strip() for part in block.split("\n\n")}
    assert shown == {name: drawn(name, 3, 4) for name in ("gpipe", "1f1b", "zero-bubble")}


def test_longer_instructions_fill_their_columns():
    assert grid.text(rehearse(catalog.make("1f1b", 1, 1), DOUBLE), 1) == "F0 B0 B0"


def test_measured_times_are_rounded_to_columns():
    cells = [Cell(0, Instruction("F", 0), 10.0, 10.9), Cell(1, Instruction("F", 0), 11.05, 12.01)]
    assert grid.text(cells, 2) == "F0 .\n.  F0"
    assert grid.bubble(cells, 2) == pytest.approx(1 - (0.9 + 0.96) / (2 * 2.01))


def test_fill_and_drain_are_left_out():
    cells = rehearse(catalog.make("pipedream", 2, 400), DOUBLE)
    assert 0 < grid.bubble(cells, 2) < 0.01
    middle = grid.steady(cells, 2)
    assert grid.bubble(middle, 2) == pytest.approx(0)
    assert (min(cell.start for cell in middle), max(cell.stop for cell in middle)) == (4, 1198)


def test_nothing_measured():
    assert (grid.bubble([], 2), grid.span([]), grid.steady([], 2), grid.text([], 2)) == (0, 0, [], "\n")
