"""The end of a block: a model's buffers are settled, by those that live where a run survives deaths."""

from types import SimpleNamespace

from psgd.worker.bound_model import settle


class Model:
    """Notes what is asked of it."""

    def __init__(self):
        self.asked, self.state = [], "own"

    def unbind(self):
        self.asked.append("unbind")

    def kept(self):
        return {"state": self.state}

    def put_back(self, kept):
        self.state = kept["state"]

    def end(self, comm, wait, first, steps):
        self.asked.append((comm, first, steps, self.state))
        self.state = "settled"


def test_without_deaths_all_ranks_settle():
    model = Model()
    settle(model, SimpleNamespace(survival=None, world="all", servers=2), print, 5)
    assert model.asked == ["unbind", ("all", 2, 5, "own")]


def test_those_that_live_begin_again_with_their_own_where_one_dies_meanwhile():
    def among_living(act):
        act("three", 1)
        act("two", 0)

    model = Model()
    settle(model, SimpleNamespace(survival=SimpleNamespace(among_living=among_living)), print, None)
    assert model.asked == ["unbind", ("three", 1, None, "own"), ("two", 0, None, "own")]
