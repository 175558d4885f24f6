"""Reductions of torch.distributed in terms of those of the library."""

from typing import Any, Optional, Tuple

import torch
from torch.distributed import ReduceOp

from ... import _ffi
from ._errors import unsupported

# A ReduceOp and its enumerator do not compare equal, but hash alike.
_OPS = {hash(ReduceOp.SUM): _ffi.ALQ_SUM, hash(ReduceOp.AVG): _ffi.ALQ_AVG,
        hash(ReduceOp.MIN): _ffi.ALQ_MIN, hash(ReduceOp.MAX): _ffi.ALQ_MAX}
_NAMES = {hash(getattr(ReduceOp, name)): name for name in (
    "SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR",
    "PREMUL_SUM")}
# A bool is a byte of 0 or 1, so its "or" is the maximum.
_BOOL_OPS = {"SUM": _ffi.ALQ_MAX, "MAX": _ffi.ALQ_MAX, "BOR": _ffi.ALQ_MAX,
             "MIN": _ffi.ALQ_MIN, "BAND": _ffi.ALQ_MIN,
             "PRODUCT": _ffi.ALQ_MIN}
_FLOATS = (_ffi.ALQ_F64, _ffi.ALQ_F32, _ffi.ALQ_F16, _ffi.ALQ_BF16)
_PREMUL = hash(getattr(ReduceOp, "PREMUL_SUM", None))


def reduction(op: Any, source: torch.Tensor,
              code: int) -> Tuple[int, int, torch.Tensor]:
    """(reduction, element type, source) to call the library with."""
    number = hash(op)
    known = _OPS.get(number)
    if code == _ffi.ALQ_BOOL:
        return _of_bool(number), _ffi.ALQ_U8, source
    if known is not None:
        return known, code, source
    if number == _PREMUL:
        return _ffi.ALQ_SUM, code, source * _factor(op)
    raise unsupported(
        "the reduction %s is not among SUM, AVG, MIN, MAX and PREMUL_SUM; "
        "gather the tensors and reduce them locally" %
        _NAMES.get(number, op))


def factor_of(op: Any, code: int) -> Optional[float]:
    """What the library multiplies the source with; None: nothing, or nothing
    that it can (a tensor of several factors, integers)."""
    if hash(op) != _PREMUL or code not in _FLOATS:
        return None
    factor = _factor(op)
    if isinstance(factor, torch.Tensor):
        return float(factor) if factor.numel() == 1 else None
    return float(factor)


def _of_bool(number: int) -> int:
    name = _NAMES.get(number, "?")
    if name not in _BOOL_OPS:
        raise unsupported("the reduction %s has no meaning for bool" % name)
    return _BOOL_OPS[name]


def _factor(op: Any) -> Any:
    state = op.__getstate__()
    return state[1] if isinstance(state, tuple) else 1.0
