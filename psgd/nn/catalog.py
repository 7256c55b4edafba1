"""The models and layers by name: where each one is, and what it needs. Loads none of them, and no NumPy.

A model is one file with a function `layers(shape, classes)`, which gives the layers between samples of that shape and
one score a class; it also takes `hidden`, and the options of its own, where its entry says so.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelEntry:
    """What is known of a model before its module is imported.

    Attributes:
        module: has `layers`.
        hidden: it has hidden layers, whose units are an option.
        any_samples: it takes samples of any shape.
        options: names of more arguments of `layers`, which are options too.
        tokens: its samples are tokens, each with a class of its own.
    """

    module: str
    hidden: bool = False
    any_samples: bool = True
    options: tuple[str, ...] = ()
    tokens: bool = False


MODELS: dict[str, ModelEntry] = {
    "softmax": ModelEntry("psgd.nn.models.softmax"),
    "mlp": ModelEntry("psgd.nn.models.mlp", hidden=True),
    "cnn": ModelEntry("psgd.nn.models.cnn", hidden=True, any_samples=False),
    "lecture-cnn": ModelEntry("psgd.nn.models.lecture_cnn", any_samples=False, options=("dropout",)),
    "resmlp": ModelEntry("psgd.nn.models.resmlp", hidden=True, any_samples=False),
    "gpt": ModelEntry("psgd.nn.models.gpt", any_samples=False, options=("layers", "width", "heads"), tokens=True),
}

LAYERS: dict[str, str] = {
    "Linear": "psgd.nn.linear",
    "Conv2D": "psgd.nn.conv2d",
    "MaxPool": "psgd.nn.maxpool",
    "MeanPool": "psgd.nn.layers.meanpool",
    "ReLU": "psgd.nn.relu",
    "Residual": "psgd.nn.residual",
    "Flatten": "psgd.nn.reshape",
    "ChannelsLast": "psgd.nn.reshape",
    "RowTokens": "psgd.nn.reshape",
    "Transpose": "psgd.nn.reshape",
    "Dropout": "psgd.nn.layers.dropout",
    "LSTM": "psgd.nn.layers.lstm",
    "Embedding": "psgd.nn.layers.embedding",
    "Positions": "psgd.nn.layers.embedding",
    "Unembedding": "psgd.nn.layers.embedding",
    "Heads": "psgd.nn.layers.attention",
    "Attention": "psgd.nn.layers.attention",
    "LayerNorm": "psgd.nn.layers.layernorm",
    "GELU": "psgd.nn.layers.gelu",
}
"""The module of each layer's class."""
