"""A worker with fewer batches to evaluate makes the passes of the others; `bind` changes nothing."""

import types

from psgd.training.sharded.shared_passes import Passes


class Plain:
    def evaluate(self, part, parts):
        return part, parts


class Both(Passes, Plain):
    _at_once = 10
    _test = types.SimpleNamespace(samples=41)  # 5 batches


def test_all_workers_make_as_many_passes():
    for part, missing in ((0, 0), (1, 0), (2, 1)):
        made, backend = [], Both()
        backend._exchange = types.SimpleNamespace(pass_by=lambda trains, made=made: made.append(trains))
        assert backend.evaluate(part, 3) == (part, 3)
        assert made == [False] * missing


def test_nothing_is_bound():
    assert Both().bind(None, None) is None
