"""The memory behind an array, whoever made it, without a copy.

NumPy arrays and anything with the array interface, torch tensors, DLPack
objects, and the buffer protocol, in this order.
"""

import ctypes
import sys
from typing import Any, NamedTuple, Tuple

from . import _dtype, _ffi
from ._handle import lease_of


class Span(NamedTuple):
    """count elements at address; keep holds what the memory belongs to."""
    address: int
    count: int
    dtype: int
    shape: Tuple[int, ...]
    keep: Any


def span(value: Any, write: bool = False) -> Span:
    """The contiguous host memory of value; write: it is going to be written."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_torch(value)
    interface = getattr(value, "__array_interface__", None)
    if interface is not None:
        return _of_interface(value, interface, write)
    if hasattr(value, "__dlpack__"):
        return _of_dlpack(value)
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(
            "%s has no memory to pass on: it takes NumPy arrays, torch "
            "tensors, DLPack objects and buffers" % type(value).__name__
        ) from None
    return _of_buffer(view, write)


def _count(shape: Tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def _refuse(value: Any, why: str) -> Exception:
    return ValueError("%s of type %s: %s" % (
        "an array", type(value).__name__, why))


_NOT_CONTIGUOUS = "it is not contiguous; pass a contiguous copy"
_READ_ONLY = "it is read-only, and this call writes it"


def _of_torch(tensor: Any) -> Span:
    if tensor.device.type != "cpu":
        raise _refuse(tensor, "it lies on %s, this rank is on the CPU" %
                      tensor.device)
    if not tensor.is_contiguous():
        raise _refuse(tensor, _NOT_CONTIGUOUS)
    return Span(tensor.data_ptr(), tensor.numel(), _dtype.of(tensor.dtype),
                tuple(tensor.shape), tensor)


def _of_interface(value: Any, interface: Any, write: bool) -> Span:
    typestr = interface["typestr"]
    dtype = _dtype.TYPESTR.get(typestr)
    if dtype is None:  # ml_dtypes' types are void types with a name
        dtype = _dtype.of(getattr(value, "dtype", typestr)
                          if "V" in typestr else typestr)
    shape = interface["shape"]
    if interface.get("strides") is not None and not _compact(
            shape, interface["strides"], _dtype.SIZES[dtype]):
        raise _refuse(value, _NOT_CONTIGUOUS)
    address, read_only = interface["data"]
    if write and read_only:
        raise _refuse(value, _READ_ONLY)
    return Span(address, _count(shape), dtype, shape, value)


def _compact(shape: Any, strides: Any, item: int) -> bool:
    """Row-major without gaps; strides of extents of 1 mean nothing."""
    expect = item
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent > 1 and stride != expect:
            return False
        expect *= extent
    return True


def _of_dlpack(value: Any) -> Span:
    # The capsule is borrowed, never consumed: it frees the tensor when it dies.
    capsule = value.__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object,
                                                  ctypes.c_char_p]
    tensor = _ffi.alq_tensor.from_address(get(capsule, b"dltensor"))
    if tensor.device_type != _ffi.ALQ_DEVICE_CPU:
        raise _refuse(value, "it does not lie in host memory")
    dtype = _dtype.DLPACK.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        raise TypeError("DLPack type (%d, %d bits, %d lanes) is unknown" %
                        (tensor.code, tensor.bits, tensor.lanes))
    shape = tuple(tensor.shape[:tensor.ndim])
    if tensor.strides and not _compact(shape, tensor.strides[:tensor.ndim], 1):
        raise _refuse(value, _NOT_CONTIGUOUS)
    return Span((tensor.data or 0) + tensor.byte_offset, _count(shape), dtype,
                shape, (capsule, value))


class _PyBuffer(ctypes.Structure):
    """CPython's Py_buffer, part of its stable ABI since 3.11 and unchanged
    before."""
    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.py_object),
                ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
                ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
                ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p),
                ("internal", ctypes.c_void_p)]


def _of_buffer(view: memoryview, write: bool) -> Span:
    if not view.c_contiguous:
        raise _refuse(view, _NOT_CONTIGUOUS)
    if write and view.readonly:
        raise _refuse(view, _READ_ONLY)
    dtype = _dtype.of_format(view.format)
    if not dtype or _dtype.SIZES[dtype] != view.itemsize:
        raise TypeError("a buffer of format %r has no element type" %
                        view.format)
    # The view keeps the memory in place; the address is only looked up here.
    raw = _PyBuffer()
    get = ctypes.pythonapi.PyObject_GetBuffer
    get.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
    get(view, ctypes.byref(raw), 0)
    address = raw.buf or 0
    release = ctypes.pythonapi.PyBuffer_Release
    release.argtypes = [ctypes.c_void_p]
    release.restype = None
    release(ctypes.byref(raw))
    return Span(address, len(view.tobytes()) // view.itemsize
                if view.ndim == 0 else _count(view.shape or ()), dtype,
                tuple(view.shape or ()), view)


def new_like(value: Any, dtype: int, shape: Tuple[int, ...]) -> Any:
    """An uninitialised array of the kind of value: torch's, else NumPy's."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return value.new_empty(shape)
    import numpy
    return numpy.empty(shape, getattr(value, "dtype", _dtype.LONG[dtype]))


def numpy_view(address: int, dtype: int, shape: Tuple[int, ...],
               keep: Any) -> Any:
    """A writable NumPy array over memory of keep, which lives as long."""
    import numpy
    count = _count(shape)
    if count == 0:
        return numpy.empty(shape, _numpy_dtype(dtype))
    memory = (ctypes.c_char * (count * _dtype.SIZES[dtype])).from_address(
        address)
    memory._keep = lease_of(keep)
    return numpy.frombuffer(memory, _numpy_dtype(dtype)).reshape(shape)


def _numpy_dtype(dtype: int) -> Any:
    import numpy
    name = _dtype.LONG[dtype]
    try:
        return numpy.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes
        return numpy.dtype(getattr(ml_dtypes, name))
    except ImportError:
        return numpy.dtype("u%d" % _dtype.SIZES[dtype])  # its bits
