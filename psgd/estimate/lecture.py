"""Two sums about memory that are often taught, computed again; and what they leave out.

The first is of GPT-2 with float32 and Adam, the second of mixed precision as in ZeRO (Rajbhandari et al. 2020, section
3.1): 16 bytes a parameter.
"""

from dataclasses import dataclass

GB, GIB = 1e9, 2.0**30


@dataclass(frozen=True)
class Transformer:
    """Sizes of a GPT: b samples, s tokens each, width h, a heads, L layers."""

    parameters: float
    batch: int
    context: int
    width: int
    heads: int
    layers: int


GPT2 = Transformer(1.5e9, batch=32, context=1024, width=1600, heads=25, layers=48)
BILLIONS = (0.32, 1.5, 17.2, 175.0)


def gpt2_sum(model: Transformer = GPT2) -> list[tuple[str, float]]:
    """Rows of the sum. Parameters are counted in GB of 10^9 bytes and activations in GiB of 2^30, as it is taught."""
    tokens = model.batch * model.context * model.width * 4
    parameters = model.parameters * 4 / GB
    rows = [
        ("parameters", parameters),
        ("gradients", parameters),
        ("Adam, 3 numbers a parameter", 3 * parameters),
        ("token embeddings", tokens / GIB),
        ("position embeddings", model.context * model.width * 4 / GIB),
        (f"activations of {model.layers} layers", 6 * tokens * model.layers / GIB),
    ]
    return [*rows, ("sum", sum(value for _, value in rows))]


def mixed_precision_table() -> list[tuple[str, ...]]:
    """Billions of parameters, GB at 16 bytes a parameter, and computation relative to the smallest."""
    head = ("parameters", *(f"{n:g} billion" for n in BILLIONS))
    memory = ("memory", *(f"{_digits(n * 16)} GB" for n in BILLIONS))
    relative = ("computation", *(_digits(n / BILLIONS[0], 2) for n in BILLIONS))
    return [head, memory, relative]


def lines(model: Transformer = GPT2) -> list[str]:
    """Both, as text."""
    text = [
        f"GPT-2, {model.parameters / 1e9:g} billion parameters, context {model.context}, batch {model.batch}, float32"
    ]
    text += [f"  {name:<28} {value:8.3f}" for name, value in gpt2_sum(model)]
    text += ["", "It is taught as 56.43 GB of activations and 86.43 in all, rounded up to 87 GB."]
    text += ["", "Mixed precision, 16 bytes a parameter (2 + 2 for it and its gradient, 12 for Adam's float32)"]
    text += ["  " + "".join(f"{cell:<14}" for cell in row).rstrip() for row in mixed_precision_table()]
    scores = model.batch * model.heads * model.context**2 * 4
    text += [
        "",
        "What they leave out: the first counts 20 bytes a parameter (4 + 4 + 12), the second 16; the first adds GB of",
        f"10^9 bytes to GiB of 2^30; neither has the attention scores, {scores / GB:.2f} GB a layer at once.",
    ]
    return text


def _digits(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}g}" if value < 10 ** (digits - 1) else f"{value:.0f}"
