"""Where each parameter lies in the one flat vector that a model is trained in."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.nn.pytorch import TorchForm


@dataclass(frozen=True)
class Parameter:
    """One parameter: elements `offset` to `stop` of the vector, seen as an array of `shape` in C order.

    Attributes:
        name: used once in a layout.
        shape: of what lies in this vector.
        offset: of the first element.
        global_shape: of the whole parameter, where this vector has a part of it; else `shape`.
        start: where in the whole that part begins, along each axis.
    """

    name: str
    shape: tuple[int, ...]
    offset: int
    global_shape: tuple[int, ...]
    start: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        """Offset just past the last element."""
        return self.offset + self.size

    @property
    def slices(self) -> tuple[slice, ...]:
        """What of the whole lies here: `whole[slices]` has `shape`."""
        return tuple(slice(start, start + extent) for start, extent in zip(self.start, self.shape, strict=True))


@dataclass(frozen=True, init=False)
class Layout:
    """Ordered parameters over one 1-D vector, in execution order.

    Every offset, and the size, is a multiple of `align` elements; the rest is padding, always 0.

    Attributes:
        parameters: in order of offset.
        align: in elements.
        tied: other names of parameters, each as (name, the parameter's name): two names, one place.
        torch: parameters that PyTorch stores in another form, each as (name, form).
    """

    parameters: tuple[Parameter, ...]
    align: int
    tied: tuple[tuple[str, str], ...]
    torch: tuple[tuple[str, TorchForm], ...]

    def __init__(
        self,
        parameters: Iterable[tuple[str, Sequence[int]]],
        align: int = 16,
        parts: Mapping[str, tuple[Sequence[int], Sequence[int]]] | None = None,
        tied: Mapping[str, str] | None = None,
        torch: Mapping[str, TorchForm] | None = None,
    ) -> None:
        """Lays the parameters out one after another.

        Args:
            parameters: name and shape of each, as they lie in this vector.
            align: in elements.
            parts: for each parameter of which this vector has only a part: the shape of the whole, and where the part
                begins along each axis.
            tied: other names, each with the parameter that it names too.
            torch: forms of parameters that PyTorch stores differently; of a part, the form of its whole.

        Raises:
            UsageError: a name that is empty or used twice, an extent below 1, an alignment below 1, a part that does
                not lie in its whole, a part, a tie or a form of an unknown parameter, or a form that does not fit.
        """
        if type(align) is not int or align < 1:
            raise UsageError(f"layout: align: expected an integer of at least 1, got {align!r}")
        placed: list[Parameter] = []
        names: set[str] = set()
        offset = 0
        for name, extents in parameters:
            shape = tuple(extents)
            if not isinstance(name, str) or not name or name in names:
                raise UsageError(f"layout: expected parameter names that are strings, each used once, got {name!r}")
            if not all(type(extent) is int and extent > 0 for extent in shape):
                raise UsageError(f"layout: shape of {name}: expected integers of at least 1, got {shape}")
            names.add(name)
            whole, start = (parts or {}).get(name, (shape, (0,) * len(shape)))
            placed.append(_part(Parameter(name, shape, offset, tuple(whole), tuple(start))))
            offset = -(-placed[-1].stop // align) * align
        if unknown := {*(parts or {}), *(tied or {}).values()} - names:
            raise UsageError(f"layout: a part or a tie of {sorted(map(str, unknown))[0]}, which is not a parameter")
        if wrong := [name for name in tied or {} if not isinstance(name, str) or not name or name in names]:
            raise UsageError(f"layout: expected parameter names that are strings, each used once, got {wrong[0]!r}")
        sizes = {parameter.name: math.prod(parameter.global_shape) for parameter in placed}
        if odd := [n for n, form in (torch or {}).items() if not form.sound or math.prod(form.split) != sizes.get(n)]:
            raise UsageError(f"layout: the form that PyTorch stores of {odd[0]!r} does not fit it")
        object.__setattr__(self, "parameters", tuple(placed))
        object.__setattr__(self, "align", align)
        object.__setattr__(self, "tied", tuple((tied or {}).items()))
        object.__setattr__(self, "torch", tuple((torch or {}).items()))

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
        """Returns each parameter, by every name, as a view of `vector` (NumPy or CuPy): nothing is copied.

        Raises:
            UsageError: `vector` is not 1-D and contiguous with `size` elements.
        """
        if vector.ndim != 1 or len(vector) != self.size or not vector.flags.c_contiguous:
            raise UsageError(
                f"layout: expected a contiguous vector of {self.size} elements, got shape {vector.shape}"
                f"{'' if vector.flags.c_contiguous else ', not contiguous'}"
            )
        views = {p.name: vector[p.offset : p.stop].reshape(p.shape) for p in self.parameters}
        return views | {name: views[same] for name, same in self.tied}

    def for_torch(self, vector: Array) -> dict[str, Array]:
        """Returns each parameter, by every name, as PyTorch's layers have it: views, or copies in another form.

        Raises:
            UsageError: as `views`, or the vector has only a part of some parameter.
        """
        views = self.views(vector)
        if parts := [p.name for p in self.parameters if p.shape != p.global_shape]:
            raise UsageError(f"layout: PyTorch's form needs whole parameters, and this vector has a part of {parts[0]}")
        turned = {name: form.of(views[name]) for name, form in self.torch}
        return views | turned | {name: turned[same] for name, same in self.tied if same in turned}

    def to_json(self) -> str:
        """Returns the layout as JSON text, offsets included, for `from_json` and for readers elsewhere.

        Parts, ties and PyTorch's forms stand there only where there are any.
        """
        parameters: list[dict[str, Any]] = []
        for p in self.parameters:
            parameters.append({"name": p.name, "shape": p.shape, "offset": p.offset})
            if p.global_shape != p.shape:
                parameters[-1] |= {"global_shape": p.global_shape, "start": p.start}
        fields = {"align": self.align, "size": self.size, "parameters": parameters}
        more = {"tied": dict(self.tied), "torch": {name: form._asdict() for name, form in self.torch}}
        return json.dumps(fields | {name: value for name, value in more.items() if value})

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
            parts = {e["name"]: (e["global_shape"], e["start"]) for e in entries if "global_shape" in e}
            shapes = [(entry["name"], entry["shape"]) for entry in entries]
            forms = {
                name: TorchForm(*(tuple(form[key]) for key in TorchForm._fields))
                for name, form in fields.get("torch", {}).items()
            }
            layout = cls(shapes, fields["align"], parts, fields.get("tied"), forms)
            same = json.loads(layout.to_json()) == fields
        except UsageError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise UsageError(f"layout: not a layout in JSON: {type(error).__name__}: {error}") from None
        if not same:
            raise UsageError("layout: offsets or size in the JSON do not follow from shapes and alignment")
        return layout


def _part(parameter: Parameter) -> Parameter:
    """Returns it if it lies in its whole."""
    shape, whole, start = parameter.shape, parameter.global_shape, parameter.start
    if not (
        len(shape) == len(whole) == len(start)
        and all(type(number) is int for number in whole + start)
        and all(0 <= first <= of - extent for extent, of, first in zip(shape, whole, start, strict=True))
    ):
        raise UsageError(
            f"layout: part {shape} of {parameter.name}, from {start} on, does not lie in a whole of shape {whole}"
        )
    return parameter
