from psgd.worker.serverless.exchange_counts import ExchangeCounts


def test_steps_are_counted_until_they_are_told():
    counts = ExchangeCounts()
    counts.note(3, 0.5)
    counts.note(0, float("nan"))  # no step: neither counted nor is its loss
    counts.note(5, 2.0)
    assert (counts.pushes, counts.samples, counts.loss) == (2, 8, 11.5)
    counts.clear()
    assert (counts.pushes, counts.samples, counts.loss) == (0, 0, 0.0)
