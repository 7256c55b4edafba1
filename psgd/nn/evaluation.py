"""How many samples of a test set are evaluated at once: of all places, and known before a run starts."""

EVALUATION_BATCH = 500
"""Samples that are evaluated at once on a CPU; of text so many tokens, in whole samples."""
ON_GPU, TOKENS_ON_GPU = 1000, 1 << 15
IN_PIECES = 4
"""How many times as many go through a pipeline before it is empty again."""


def evaluated_at_once(tokens: int, device: str = "cpu", *, in_pieces: bool = False) -> int:
    """How many samples are evaluated at once, where so many things are classified of each; the test set may have less.

    Args:
        tokens: of a sample that has a loss for each of them; else 1.
        device: "cpu" or "cuda".
        in_pieces: the model is, on several ranks.
    """
    times = IN_PIECES if in_pieces else 1
    if device == "cuda":
        return max(1, min(times * ON_GPU, times * TOKENS_ON_GPU // tokens))
    return max(1, times * EVALUATION_BATCH // tokens)
