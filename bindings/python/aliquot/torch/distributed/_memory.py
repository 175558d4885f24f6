"""Tensors in memory that the other ranks of the host read in place.

Buffers are kept and lent again, so that their pages are touched once.
"""

import ctypes
import threading
import weakref
from typing import Any, Dict, List

import torch

_GRAIN = 1 << 16


class Pool:
    def __init__(self, context: Any) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._free: Dict[int, List[Any]] = {}
        self._closed = False

    def tensor(self, size: Any, dtype: torch.dtype) -> torch.Tensor:
        shape = (size,) if isinstance(size, int) else tuple(size)
        count = 1
        for extent in shape:
            count *= extent
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        nbytes = count * torch.empty((), dtype=dtype).element_size()
        rounded = -(-nbytes // _GRAIN) * _GRAIN
        with self._lock:
            free = self._free.get(rounded)
            buffer = free.pop() if free else None
        if buffer is None:
            buffer = self._context.buffer(rounded)
        memory = (ctypes.c_char * nbytes).from_address(buffer.address)
        tensor = torch.frombuffer(memory, dtype=dtype, count=count)
        # torch holds the memory object as long as the storage lives.
        weakref.finalize(memory, self._lend_again, rounded, buffer).atexit = \
            False
        return tensor.view(shape)

    def _lend_again(self, rounded: int, buffer: Any) -> None:
        with self._lock:
            if not self._closed:
                self._free.setdefault(rounded, []).append(buffer)

    def clear(self) -> None:
        """Buffers that are lent go back to the system when they return."""
        with self._lock:
            self._closed = True
            self._free.clear()
