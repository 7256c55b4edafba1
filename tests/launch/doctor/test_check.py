"""The report of the checks as text."""

from psgd.launch.doctor.check import Check, lines


def test_lines():
    found = [Check("a", "1"), Check("longer", "2", "wrong", "do it")]
    assert lines(found) == ["ok       a       1", "wrong    longer  2", "                 fix: do it"]
