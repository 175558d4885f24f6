"""Aliquot: a parallelism engine for training frameworks.

    import aliquot
    with aliquot.open() as ctx:               # the environment's world
        ctx.world.all_reduce(array)           # in place, any array of the host

aliquot.torch shards a PyTorch model.  Importing this package loads nothing and
starts nothing; the library is loaded by the first call that needs it.
"""

import json as _json
from typing import Any as _Any, Dict as _Dict

from . import _library
from ._buffer import Buffer
from ._context import Context
from ._context import open_context as open  # noqa: A004
from ._engine import ALL, Engine, Shard, View
from ._error import (Aborted, AlreadyExists, Cancelled, DataLoss,
                     DeadlineExceeded, Error, FailedPrecondition,
                     GroupPoisoned, Internal, InvalidArgument, NotFound,
                     OutOfRange, PeerFailed, PermissionDenied, RankMismatch,
                     ResourceExhausted, Unauthenticated, Unavailable,
                     Unimplemented, Unsupported)
from ._ffi import (ALQ_VERSION_MAJOR, ALQ_VERSION_MINOR, ALQ_VERSION_PATCH)
from ._group import Group
from ._library import library_path
from ._mesh import Mesh
from ._work import Event, Stream, Work

__version__ = "%d.%d.%d" % (ALQ_VERSION_MAJOR, ALQ_VERSION_MINOR,
                            ALQ_VERSION_PATCH)


def build_info() -> _Dict[str, _Any]:
    """Version, compiler, backends and SIMD targets of the library."""
    return dict(_json.loads(_library.library().alq_build_info()))


def has(feature: str) -> bool:
    """Whether a feature ("backend.mem", "strategy.fsdp") is in the library."""
    return bool(_library.library().alq_has(feature.encode()))


__all__ = [
    "ALL", "Aborted", "AlreadyExists", "Buffer", "Cancelled", "Context",
    "DataLoss", "DeadlineExceeded", "Engine", "Error", "Event",
    "FailedPrecondition", "Group", "GroupPoisoned", "Internal",
    "InvalidArgument", "Mesh", "NotFound", "OutOfRange", "PeerFailed",
    "PermissionDenied", "RankMismatch", "ResourceExhausted", "Shard", "Stream",
    "Unauthenticated", "Unavailable", "Unimplemented", "Unsupported", "View",
    "Work", "build_info", "has", "library_path", "open"]
