"""Tensors over the engine's memory."""

import ctypes
from typing import Any, Sequence

import torch

from .. import _dtype
from .._handle import lease_of

TORCH = {code: getattr(torch, name) for code, name in _dtype.LONG.items()
         if hasattr(torch, name)}


def tensor_at(address: int, shape: Sequence[int], dtype: torch.dtype,
              keep: Any) -> torch.Tensor:
    """A tensor over lent memory; keep is what lends it."""
    count = 1
    for extent in shape:
        count *= extent
    if count == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    memory._keep = lease_of(keep)
    return torch.frombuffer(memory, dtype=dtype).view(tuple(shape))


def shard_tensor(engine: Any, param: int, what: str) -> torch.Tensor:
    """Own part of a parameter, flat, in the type it is stored in."""
    shard = engine.shard_view(param, what)
    return tensor_at(shard.address, (shard.count,), TORCH[shard.dtype], engine)
