"""Errors of the library as errors of torch.distributed.

Each is what it is in aliquot and a DistBackendError too; its rank is global.
"""

from typing import Any, Dict, Type

from torch.distributed import DistBackendError

from ..._error import Error, RankMismatch, Unsupported
from ..._ffi import ALQ_RANK_MISMATCH, ALQ_UNSUPPORTED

_classes: Dict[type, type] = {}


def _both(kind: Type[Error]) -> Any:
    both = _classes.get(kind)
    if both is None:
        both = type(kind.__name__, (kind, DistBackendError),
                    {"__doc__": kind.__doc__, "__module__": __name__,
                     "__reduce__": _reduce})
        _classes[kind] = both
    return both


def _reduce(error: Any) -> Any:
    return _remake, (type(error).__mro__[1], error.message, error.code,
                     error.rank, error.domain, error.native_code)


def _remake(kind: Type[Error], *fields: Any) -> Error:
    return _both(kind)(*fields)


def in_group(error: Error, group: Any) -> Error:
    """The error of a call of the process group."""
    message, rank = error.message, error.rank
    ranks = group.global_ranks
    if ranks and ranks != list(range(len(ranks))):
        message += (" (in process group %s, whose ranks are the global ranks "
                    "%s)" % (group.group_name, ", ".join(map(str, ranks))))
        if 0 <= rank < len(ranks):
            rank = ranks[rank]
    return _both(type(error))(message, error.code, rank, error.domain,
                              error.native_code)


def unsupported(message: str) -> Error:
    """Also a NotImplementedError."""
    return _both(Unsupported)(message, ALQ_UNSUPPORTED)


def mismatch(message: str, rank: int) -> Error:
    return _both(RankMismatch)(message, ALQ_RANK_MISMATCH, rank)
