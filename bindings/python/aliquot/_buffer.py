"""Memory that the other ranks of the host read in place."""

from typing import Any

from . import _dtype
from ._arguments import items
from ._handle import Handle, new_handle
from ._library import library
from ._memory import numpy_view


class Buffer(Handle):
    """Collectives on views of it copy nothing.  It has the array interface: as
    bytes, or through view() with a type and a shape.  A view keeps
    the memory alive, also after release(); an array made of the whole buffer by
    its interface keeps the buffer alive, but not after release()."""

    _kind = "buffer"
    _release = "alq_buffer_release"

    def __init__(self, context: Any, nbytes: int) -> None:
        self._context = context
        self._own(new_handle(library().alq_buffer_alloc, context._live(),
                             nbytes))
        self.address: int = library().alq_buffer_data(self._handle)
        self.nbytes: int = library().alq_buffer_bytes(self._handle)

    def __len__(self) -> int:
        return self.nbytes

    @property
    def __array_interface__(self) -> Any:
        self._live()
        return {"version": 3, "typestr": "|u1", "shape": (self.nbytes,),
                "data": (self.address, False)}

    def view(self, dtype: Any = "u8", shape: Any = None,
             offset: int = 0) -> Any:
        """A NumPy array over the memory from byte offset on; shape None: all
        that is left."""
        self._live()
        code = _dtype.of(dtype)
        size = _dtype.SIZES[code]
        if shape is None:
            shape = ((self.nbytes - offset) // size,)
        elif isinstance(shape, int):
            shape = (shape,)
        shape = items("shape", shape, "extents", "shape=(4, 3)")
        count = 1
        for extent in shape:
            count *= extent
        if offset < 0 or count < 0 or offset + count * size > self.nbytes:
            raise ValueError("%d elements of %d bytes from byte %d on do not "
                             "fit into %d bytes" %
                             (count, size, offset, self.nbytes))
        return numpy_view(self.address + offset, code, tuple(shape), self)
