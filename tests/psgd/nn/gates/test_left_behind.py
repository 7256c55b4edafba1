"""What layers keep in their states is noted and put back."""

from dataclasses import dataclass, field

from psgd.nn.gates.left_behind import noted, put_back


@dataclass
class Inner:
    n: int = 0


@dataclass
class Outer:
    views: list = field(default_factory=list)
    inner: Inner = field(default_factory=Inner)


@dataclass(frozen=True)
class OfLayer:
    n: int = 0


def test_states_are_as_they_were():
    outer, other = Outer([1], Inner(3)), Inner(4)
    left = noted([(outer, None), other, "not a state", OfLayer()])
    outer.views.append(2)
    outer.inner.n, other.n = 5, 6
    put_back(left)
    assert outer == Outer([1], Inner(3)) and other == Inner(4)


def test_it_can_be_put_back_again():
    state = Outer([1])
    left = noted(state)
    for _ in range(2):
        put_back(left)
        state.views = [*state.views, 2]
        assert state.views == [1, 2]
