"""In-flight microbatches are counted from a program."""

from psgd.parallel.schedules.instruction import Instruction
from psgd.parallel.schedules.schedule import alive


def test_a_microbatch_is_alive_until_its_parameter_gradients_are_done():
    program = tuple(Instruction(kind, int(k)) for kind, k in ("F0", "F1", "X0", "F2", "W0", "X1", "W1", "B2"))
    assert alive(program) == 3
    assert alive(()) == 0
