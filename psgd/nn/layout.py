"""Where each parameter lies in the one flat vector that a model is trained in."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError


@dataclass(frozen=True)
class Parameter:
    """One parameter: elements `offset` to `stop` of the vector, seen as an array of `shape` in C order."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        """Offset just behind the last element."""
        return self.offset + self.size


@dataclass(frozen=True, init=False)
class Layout:
    """Ordered parameters over one 1-D vector, in execution order.

    Every offset, and the size, is a multiple of `align` elements; what is left over is padding, always 0.

    Attributes:
        parameters: in order of offset.
        align: in elements.
    """

    parameters: tuple[Parameter, ...]
    align: int

    def __init__(self, parameters: Iterable[tuple[str, Sequence[int]]], align: int = 16) -> None:
        """Lays the parameters out one behind the other.

        Raises:
            UsageError: a name that is empty or comes twice, an extent below 1, an alignment below 1.
        """
        if type(align) is not int or align < 1:
            raise UsageError(f"layout: align is an integer of at least 1, got {align!r}")
        placed: list[Parameter] = []
        names: set[str] = set()
        offset = 0
        for name, extents in parameters:
            shape = tuple(extents)
            if not isinstance(name, str) or not name or name in names:
                raise UsageError(f"layout: parameter names are texts, each used once; got {name!r}")
            if not all(type(extent) is int and extent > 0 for extent in shape):
                raise UsageError(f"layout: shape of {name} has integers of at least 1, got {shape}")
            names.add(name)
            placed.append(Parameter(name, shape, offset))
            offset = -(-placed[-1].stop // align) * align
        object.__setattr__(self, "parameters", tuple(placed))
        object.__setattr__(self, "align", align)

    @property
    def size(self) -> int:
        """Elements of the vector, padding included."""
        return -(-self.parameters[-1].stop // self.align) * self.align if self.parameters else 0

    @property
    def padding(self) -> tuple[range, ...]:
        """The ranges that belong to no parameter, in order."""
        ends = [parameter.offset for parameter in self.parameters[1:]] + [self.size]
        gaps = (range(p.stop, end) for p, end in zip(self.parameters, ends, strict=False))
        return tuple(gap for gap in gaps if gap)

    def views(self, vector: Array) -> dict[str, Array]:
        """Returns each parameter as a view of `vector` (NumPy or CuPy): nothing is copied.

        Raises:
            UsageError: `vector` is not 1-D and contiguous with `size` elements.
        """
        if vector.ndim != 1 or len(vector) != self.size or not vector.flags.c_contiguous:
            raise UsageError(
                f"layout: expected a contiguous vector of {self.size} elements, got shape {vector.shape}"
                f"{'' if vector.flags.c_contiguous else ', not contiguous'}"
            )
        return {p.name: vector[p.offset : p.stop].reshape(p.shape) for p in self.parameters}

    def to_json(self) -> str:
        """Returns the layout as JSON text, offsets included, for `from_json` and for readers elsewhere."""
        parameters = [{"name": p.name, "shape": p.shape, "offset": p.offset} for p in self.parameters]
        return json.dumps({"align": self.align, "size": self.size, "parameters": parameters})

    @classmethod
    def from_json(cls, text: str | bytes) -> "Layout":
        """Reads what `to_json` wrote.

        Raises:
            UsageError: not JSON, a field missing or of the wrong type, or offsets that do not follow from the
                shapes and the alignment.
        """
        try:
            fields = json.loads(text)
            entries = fields["parameters"]
            layout = cls([(entry["name"], entry["shape"]) for entry in entries], fields["align"])
            same = json.loads(layout.to_json()) == fields
        except UsageError:
            raise
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise UsageError(f"layout: not a layout in JSON: {type(error).__name__}: {error}") from None
        if not same:
            raise UsageError("layout: offsets or size in the JSON do not follow from shapes and alignment")
        return layout
