import inspect

from psgd.metrics.callback import Callback


def test_every_method_does_nothing_and_is_a_hook():
    methods = [name for name, _ in inspect.getmembers(Callback, inspect.isfunction)]
    assert methods and all(name.startswith("on_") for name in methods)
    for name in methods:
        arguments = [None] * (len(inspect.signature(getattr(Callback, name)).parameters) - 1)
        assert getattr(Callback(), name)(*arguments) is None
