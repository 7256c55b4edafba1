"""The codecs by name: where each one is, and what it needs. Loads none of them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CodecEntry:
    """What is known of a codec before its module is imported.

    Attributes:
        module: has the class.
        cls: the class, a `psgd.kernels.codecs.codec.Codec`.
        has_density: it sends a share of the elements; else always all of them.
        has_momentum: it applies momentum itself, option `momentum`; else the worker applies it first.
        value_bits: of an entry, beside its place and its sign.
    """

    module: str
    cls: str
    has_density: bool = True
    has_momentum: bool = False
    value_bits: int = 0


CODECS: dict[str, CodecEntry] = {
    "threshold": CodecEntry("psgd.kernels.codecs.threshold", "Threshold"),
    "onebit": CodecEntry("psgd.kernels.codecs.onebit", "OneBit", has_density=False),
    "topk": CodecEntry("psgd.kernels.codecs.topk", "TopK", has_momentum=True, value_bits=31),
}
