"""What callers pass as a buffer, as one flat NumPy array: the same memory where that is possible, else a copy.

The order of the elements is always the logical one (C order of the indices), whatever the order in memory: a
Fortran-ordered or strided array is copied, and a result is put back by index.
"""

import sys
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from psgd.collectives.arguments.view import BFLOAT16, KINDS, NAMES, CopiedView, View
from psgd.kernels.errors import UsageError

_BITS = np.dtype(np.uint16)
_CUDA_DEVICES = (2, 13)  # DLPack's numbers: CUDA memory, plain and managed
_HOST_DEVICES = (1, 3, 11)  # DLPack's numbers: plain memory, and pinned by CUDA or by ROCm
_MENDS = {
    "g": "convert it with .astype(np.float64)",
    "G": "convert it with .astype(np.complex128)",
    "O": "convert it to a dtype of numbers with .astype(...)",
    "M": "pass .view(np.int64), its ticks",
    "m": "pass .view(np.int64), its ticks",
    "U": "encode it and pass the bytes",
    "S": "pass its bytes, .view(np.uint8)",
    "V": "pass one field of it, or its bytes with .view(np.uint8)",
}


def view(obj: Any, name: str, writable: bool) -> View:
    """Makes a flat array of what a caller passes as a buffer. Copies only what is not plain, contiguous memory.

    Taken are NumPy arrays and subclasses (as plain memory), what has the buffer protocol, `__array_interface__`, the
    CUDA array interface or DLPack, PyTorch's tensors (their memory; autograd does not see it) and JAX's arrays (to send
    only), on the host or on a CUDA GPU (`device_arrays`); bool, integers, floats and complex numbers of 8 to 128 bits,
    bfloat16 of PyTorch, ml_dtypes and JAX.

    Args:
        obj: the buffer. It must outlive the collective.
        name: the argument's name, for errors.
        writable: the collective writes into it; `View.write_back` must follow, once the result is in `flat`.

    Raises:
        UsageError: it is no buffer, not of a supported type, on another device, or, with `writable`, read-only or
            overlapping itself in memory.
    """
    if type(obj) is np.ndarray:
        kind = KINDS.get(obj.dtype)
        if kind is not None:
            flags = obj.flags
            if flags.carray or (not writable and flags.c_contiguous and flags.aligned):  # carray: writable as well
                return View(obj if obj.ndim == 1 else obj.reshape(-1), kind, obj)
        return _of_array(obj, obj, name, writable)
    if is_device(obj):
        return _on_device(obj, name, writable)
    if _is_from("torch", "Tensor", obj):
        bits = obj.dtype is sys.modules["torch"].bfloat16
        return _of_array(_of_torch(obj, name, writable), obj, name, writable, BFLOAT16 if bits else None)
    return _of_array(_as_array(obj, name, writable), obj, name, writable)


def is_device(obj: Any) -> bool:
    """Whether an object is an array in a CUDA GPU's memory. Imports nothing."""
    if _is_from("torch", "Tensor", obj):
        return bool(obj.is_cuda)
    if _is_from("jax", "Array", obj):
        try:
            return {device.platform for device in obj.devices()} == {"gpu"}
        except Exception:  # JAX has many: traced in jit, deleted
            return False
    if hasattr(obj, "__cuda_array_interface__"):
        return True
    try:
        return obj.__dlpack_device__()[0] in _CUDA_DEVICES
    except Exception:  # it has none, or its library raises whatever it likes
        return False


def _on_device(obj: Any, name: str, writable: bool) -> View:
    try:
        from psgd.collectives.arguments import device_arrays
    except ImportError as error:
        raise UsageError(
            f"{name}: expected CuPy for {_type(obj)} on a GPU, got {error}; pip install cupy-cuda13x (or cupy-cuda12x)"
        ) from error
    return device_arrays.view(obj, name, writable)


def _of_array(array: NDArray[Any], source: Any, name: str, writable: bool, kind: str | None = None) -> View:
    dtype = array.dtype
    kind = kind or KINDS.get(dtype)
    if kind is None and dtype.name == BFLOAT16:  # that of ml_dtypes, known by name: it need not be installed
        kind = BFLOAT16
        array = array.view(_BITS)
    native = array.dtype if kind else dtype.newbyteorder("=")
    kind = kind or KINDS.get(native)
    if kind is None:
        raise UsageError(
            f"{name}: expected elements of {', '.join(NAMES)} or bfloat16, got {_type(source)} of dtype {dtype}; "
            + _MENDS.get(dtype.char, "convert it with .astype(...)")
        )
    if writable:
        if _may_overlap(array):
            raise UsageError(
                f"{name}: expected separate memory for each element, got {_type(source)} of shape {array.shape}, "
                f"dtype {dtype} and strides {array.strides}, whose elements overlap; pass a copy: np.array(...)"
            )
        if not array.flags.writeable:
            raise UsageError(
                f"{name}: expected writable memory to receive into, got a read-only {_type(source)} of dtype {dtype}; "
                "pass a writable array, such as np.empty(shape, dtype)"
            )
    if array.flags.c_contiguous and array.flags.aligned and array.dtype == native:
        return View(array.reshape(-1), kind, array)
    copy = np.array(array, native, order="C", copy=True).reshape(-1)
    return CopiedView(copy, kind, array) if writable else View(copy, kind, array, copied=True)


def _may_overlap(array: NDArray[Any]) -> bool:
    """Whether two elements may share a byte. Certain for all that slicing and broadcasting can make."""
    if array.size == 0 or array.flags.forc:
        return False
    reach = array.itemsize
    for stride, n in sorted((abs(stride), n) for stride, n in zip(array.strides, array.shape, strict=True) if n > 1):
        if stride < reach:
            return True
        reach += (n - 1) * stride
    return False


def _as_array(obj: Any, name: str, writable: bool) -> NDArray[Any]:
    """A NumPy array on the same memory, of the base class, for anything but a plain NumPy array."""
    if isinstance(obj, np.ndarray):
        if isinstance(obj, np.ma.MaskedArray):
            raise UsageError(
                f"{name}: expected an array without a mask, got {_type(obj)} of dtype {obj.dtype}, whose mask would be "
                "lost; pass its .data or .filled(...)"
            )
        return np.asarray(obj)
    if type(obj).__name__ in ("InPlaceType", "BottomType"):  # mpi4py's; to Python they are empty buffers
        raise UsageError(f"{name}: expected an array or a buffer, got {_type(obj)}, which is not allowed here")
    if obj is None or isinstance(obj, (list, tuple, str, bool, int, float, complex, np.generic)):
        raise UsageError(f"{name}: expected an array or a buffer, got {_type(obj)}; pass an array: np.asarray(...)")
    if _is_from("jax", "Array", obj):
        return _of_jax(obj, name, writable)
    try:
        memory = memoryview(obj)
    except TypeError:
        return _by_protocol(obj, name)
    except (BufferError, ValueError) as error:
        _refuse(obj, name, error)
    return _of_memory(memory, obj, name)


def _of_memory(memory: memoryview, obj: Any, name: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.asarray(memory)
    except (ValueError, TypeError) as error:
        _refuse(obj, name, error)
    return array.view(np.uint8) if array.dtype == np.dtype("S1") else array  # C's char: raw bytes


def _by_protocol(obj: Any, name: str) -> NDArray[Any]:
    try:
        if hasattr(obj, "__array_interface__"):
            return np.asarray(obj)
        if hasattr(obj, "__dlpack__"):
            device = obj.__dlpack_device__()[0] if hasattr(obj, "__dlpack_device__") else 1
            if device not in _HOST_DEVICES:
                _refuse_device(obj, name, f"DLPack device type {int(device)}")
            return np.from_dlpack(obj)
    except UsageError:
        raise
    except Exception as error:  # the library of the object may raise anything
        _refuse(obj, name, error)
    raise UsageError(f"{name}: expected an array or a buffer, got {_type(obj)}; pass an array: np.asarray(...)")


def _of_torch(tensor: Any, name: str, writable: bool) -> NDArray[Any]:
    torch = sys.modules["torch"]
    if tensor.device.type != "cpu":
        _refuse_device(tensor, name, f"device {tensor.device}")
    try:
        tensor = tensor.detach()  # the same memory, out of autograd's sight
        if tensor.is_conj() or tensor.is_neg():
            if writable:
                raise UsageError(
                    f"{name}: expected plain memory to receive into, got a lazily conjugated or negated torch.Tensor "
                    f"of dtype {tensor.dtype}; pass .resolve_conj().resolve_neg() of it"
                )
            tensor = tensor.resolve_conj().resolve_neg()
        if tensor.dtype is torch.bfloat16:
            bits: NDArray[Any] = tensor.view(torch.int16).numpy().view(_BITS)  # older PyTorch has no uint16
            return bits
        array: NDArray[Any] = tensor.numpy()
    except (RuntimeError, TypeError) as error:
        _refuse(tensor, name, error, f" of dtype {tensor.dtype}, layout {tensor.layout}")
    return array


def _of_jax(array: Any, name: str, writable: bool) -> NDArray[Any]:
    if writable:
        raise UsageError(
            f"{name}: expected writable memory to receive into, got a JAX array of dtype {array.dtype}, which can "
            "never change; receive into a NumPy array and pass that to jax.numpy.asarray"
        )
    try:
        platforms = {device.platform for device in array.devices()}
        if platforms != {"cpu"}:
            _refuse_device(array, name, f"platform {', '.join(sorted(platforms))}")
        return np.asarray(array)
    except UsageError:
        raise
    except Exception as error:  # JAX has many: traced in jit, deleted, spread over processes, keys
        _refuse(array, name, error, f" of dtype {array.dtype}")


def _is_from(module: str, attribute: str, obj: Any) -> bool:
    """Whether `obj` is of a library's class, without importing it: the program that made the object has."""
    kind = getattr(sys.modules.get(module), attribute, None)
    return kind is not None and isinstance(obj, kind)


def _type(obj: Any) -> str:
    kind = type(obj)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _refuse(obj: Any, name: str, error: Exception, what: str = "") -> NoReturn:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    raise UsageError(
        f"{name}: expected an array or a buffer of numbers, got {_type(obj)}{what} ({reason}); "
        "pass a NumPy array with the same values"
    ) from error


def _refuse_device(obj: Any, name: str, where: str) -> NoReturn:
    raise UsageError(
        f"{name}: expected memory of the host, got {_type(obj)} on {where}: "
        "only CUDA devices are supported; copy it to the host"
    )
