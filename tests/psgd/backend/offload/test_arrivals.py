"""Parts are handed over in order, each once all its moments have passed."""

from psgd.backend.offload.arrivals import Arrivals


class Moment:
    def __init__(self):
        self.over = self.waited = False

    def passed(self):
        return self.over

    def wait(self):
        self.over = self.waited = True


def test_in_order_and_when_they_are_there():
    arrivals, got = Arrivals(), []
    moments = [Moment() for _ in range(4)]
    arrivals.add(range(6, 9), moments[0], moments[1])
    arrivals.add(range(3, 6), moments[2])
    arrivals.add(range(3), moments[3])
    moments[0].over = moments[2].over = True
    arrivals.take(got.append)
    assert got == []  # the first one is not complete, and the second one is behind it
    moments[1].over = True
    arrivals.take(got.append)
    assert got == [range(6, 9), range(3, 6)] and not moments[3].waited
    arrivals.take(got.append, all_of_them=True)
    assert got[2:] == [range(3)] and moments[3].waited
    arrivals.add(range(1), Moment())
    arrivals.take(None, all_of_them=True)
    arrivals.take(got.append, all_of_them=True)
    assert len(got) == 3
