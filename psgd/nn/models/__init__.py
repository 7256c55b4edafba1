"""The models by name: each is one file that puts layers together; `psgd.nn.catalog` lists them.

May import the layers of `psgd.nn`. Begin with `build`, then `mlp.py`.
"""

import importlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from psgd.kernels.errors import UsageError
from psgd.nn.catalog import MODELS
from psgd.nn.model import Model

DEFAULTS: dict[str, int | float] = {"layers": 4, "width": 128, "heads": 4, "dropout": 0.0}
"""Of the options that some models have."""


def build(
    name: str,
    input_shape: Sequence[int],
    classes: int,
    dtype: Any = np.float32,
    hidden: int = 256,
    tokens: bool = False,
    ranks: int = 1,
    **options: int | float,
) -> Model:
    """Returns a model for samples of `input_shape` and `classes` classes.

    Args:
        name: one of `MODELS`.
        input_shape: of one sample; (channels, height, width) for images, (tokens, features) for resmlp.
        classes: at least 2.
        dtype: float32 or float64.
        hidden: units of each hidden linear layer, where the model has one.
        tokens: samples are tokens, each with a class of its own.
        ranks: how many hold the parameters together.
        options: `layers`, `width`, `heads`, `dropout`, where the model has them; others have no use for them.

    Raises:
        UsageError: an unknown name, a shape that the model cannot take, or more parameters than this machine's memory.
    """
    shape = tuple(input_shape)
    if not shape or min(shape) < 1 or classes < 2 or hidden < 1:
        raise UsageError(
            f"model {name}: needs samples of at least one value, 2 classes and 1 hidden unit; got samples of "
            f"shape {shape}, {classes} classes, {hidden} hidden units"
        )
    if name not in MODELS:
        raise UsageError(f"unknown model {name!r}: choose one of {', '.join(MODELS)}")
    entry = MODELS[name]
    if tokens != entry.tokens:
        able = ", ".join(each for each, other in MODELS.items() if other.tokens == tokens)
        samples = "text, whose tokens have a class each" if tokens else "samples with one class each, not text"
        fix = "" if tokens else ", or --dataset genesis or a text, FILE.txt"
        raise UsageError(f"model {name}: the dataset has {samples}; expected --model {able}{fix}")
    chosen: dict[str, int | float] = {"hidden": hidden} if entry.hidden else {}
    chosen |= {each: options.get(each, DEFAULTS[each]) for each in entry.options}
    if min((value for each, value in chosen.items() if each != "dropout"), default=1) < 1:
        raise UsageError(f"model {name}: expected options of at least 1, got {chosen}")
    model = Model(importlib.import_module(entry.module).layers(shape, classes, **chosen), shape, dtype)
    needed, memory = (
        model.layout.size * np.dtype(dtype).itemsize // ranks,
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    )
    if needed > memory:
        wide = "hidden" if entry.hidden else "width" if "width" in entry.options else ""
        raise UsageError(
            f"model {name}: its {model.layout.size:,} parameters take {needed / 1e9:,.0f} GB"
            f"{f' on each of {ranks} ranks' if ranks > 1 else ''}, this machine has "
            f"{memory / 1e9:,.0f} GB" + (f"; expected a smaller --{wide}" if wide else "")
        )
    return model
