"""The context of a program that names none: opened once, from the environment,
closed in order at exit unless the program failed."""

import atexit
import os
import sys
from typing import Any, Dict, Optional

from .._context import Context, open_context
from .._error import Error
from .._mesh import Mesh, spec_text

_default: Optional[Context] = None
_meshes: Dict[str, Mesh] = {}
_pid = 0


def default_context() -> Context:
    """The process's own context: that of the environment's world."""
    global _default, _pid
    if _default is None or _default.closed or _pid != os.getpid():
        _meshes.clear()
        if _default is None:
            atexit.register(_close)
        _default, _pid = open_context(), os.getpid()
    return _default


def resolve_mesh(mesh: Any) -> Mesh:
    """mesh: a Mesh, a spec ("dp_replicate=2,dp_shard=-1" or a dict), a Context,
    or None for all ranks of the default context."""
    if isinstance(mesh, Mesh):
        return mesh
    if isinstance(mesh, Context):
        return mesh.mesh()
    context = default_context()
    spec = spec_text("" if mesh is None else mesh)
    if spec not in _meshes:
        _meshes[spec] = context.mesh(spec)
    return _meshes[spec]


DATA = ("dp_replicate", "dp_shard")
# Ranks along these have engines of their own, which the caller keeps in step.
OTHERS = ("pp", "cp", "tp", "ep")


def data_ranks(mesh: Mesh) -> int:
    """How many ranks share a model's data out.  Refuses axes that nobody would
    keep in step: a typing error would train copies that drift apart.  Of size 1,
    too, lest it be found only where there are more ranks."""
    for axis, size in mesh.axes.items():
        if axis not in DATA + OTHERS:
            raise ValueError(
                "mesh %r: shard() does not know the axis %s (%d of %d ranks); "
                "use %s, as in \"dp_shard=%d\" (for %s there is nothing yet but "
                "the names)" % (mesh.spec, axis, size, mesh.context.size,
                                " and ".join(DATA), size, ", ".join(OTHERS)))
    return mesh.axis_size("dp_shard") * mesh.axis_size("dp_replicate")


def _close() -> None:
    context = _default
    if context is None or context.closed or _pid != os.getpid():
        return
    if getattr(sys, "last_value", None) is not None:
        context.leave("%s: %s" % (type(sys.last_value).__name__,
                                  sys.last_value))
        return
    try:
        context.close(10)
    except Error:
        pass  # a peer has left; it says why itself
