"""How many samples of a test set are evaluated at once: of all places, and known before a run starts."""

EVALUATION_BATCH = 500
"""Samples that are evaluated at once on a CPU; of text so many tokens, in whole samples."""
IN_PIECES = 4 * EVALUATION_BATCH
"""Samples or tokens of the test set that go through a pipeline before it is empty again."""
ON_GPU, TOKENS_ON_GPU = 1000, 1 << 15


def evaluated_at_once(tokens: int, device: str = "cpu", *, in_pieces: bool = False) -> int:
    """How many samples are evaluated at once, where so many things are classified of each; the test set may have less.

    Args:
        tokens: of a sample that has a loss for each of them; else 1.
        device: "cpu" or "cuda".
        in_pieces: the model is, on several ranks.
    """
    if device == "cuda" and not in_pieces:
        return max(1, min(ON_GPU, TOKENS_ON_GPU // tokens))
    return max(1, (IN_PIECES if in_pieces else EVALUATION_BATCH) // tokens)
