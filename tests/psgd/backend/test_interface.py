from psgd.backend.interface import EVALUATION_BATCH, evaluated_at_once


def test_a_batch_of_text_has_as_many_tokens_as_another_has_samples():
    assert evaluated_at_once(1) == EVALUATION_BATCH
    assert evaluated_at_once(100) == EVALUATION_BATCH // 100
    assert evaluated_at_once(10 * EVALUATION_BATCH) == 1  # whole samples
