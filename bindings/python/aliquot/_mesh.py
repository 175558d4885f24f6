"""Named axes over the world's ranks, and the groups over them."""

import ctypes
from typing import Any, Dict, List, Mapping, SupportsIndex, Union

from ._error import check
from ._group import Group
from ._handle import Handle, new_handle
from ._library import library

Spec = Union[str, Mapping[str, int]]


def spec_text(spec: Spec) -> str:
    if isinstance(spec, str):
        return spec
    if not isinstance(spec, Mapping):
        raise TypeError("mesh=%.80r is of type %s; give a str as in "
                        "\"dp_replicate=2,dp_shard=-1\", or a dict of the same" %
                        (spec, type(spec).__name__))
    for axis, size in spec.items():
        whole = isinstance(size, float) and size.is_integer()
        if not isinstance(size, SupportsIndex) and not whole:
            raise TypeError("mesh axis %r: its size %r is of type %s; give an "
                            "int, or -1 for the rest" %
                            (axis, size, type(size).__name__))
    return ",".join("%s=%d" % item for item in spec.items())


def axes_text(axes: Any) -> bytes:
    if not isinstance(axes, str):
        raise TypeError("axes=%.80r is of type %s; give a str, as in "
                        "\"dp_replicate,dp_shard\"" %
                        (axes, type(axes).__name__))
    return axes.encode()


class Mesh(Handle):
    _kind = "mesh"
    _release = "alq_mesh_release"

    def __init__(self, context: Any, spec: Spec = "") -> None:
        self.context = context
        self.spec = spec_text(spec)
        self._groups: Dict[str, Group] = {}
        self._own(new_handle(library().alq_mesh_create, context._live(),
                             self.spec.encode(), owner=context))

    @property
    def axes(self) -> Dict[str, int]:
        """Names and sizes, slowest first; an empty spec is dp_shard alone."""
        names = [item.partition("=")[0].strip()
                 for item in self.spec.split(",")]
        return {name: self.axis_size(name) for name in names
                if name} or {"dp_shard": self.axis_size("dp_shard")}

    def __repr__(self) -> str:
        return "<aliquot.Mesh %r>" % self.spec

    def axis_size(self, axis: str) -> int:
        """1 for an axis that the mesh does not have."""
        return int(library().alq_mesh_axis_size(self._live(), axes_text(axis)))

    def coordinate(self, axis: str) -> int:
        """0 for an axis that the mesh does not have."""
        return int(library().alq_mesh_coordinate(self._live(), axes_text(axis)))

    def group(self, axes: str) -> Group:
        """The group over one axis or several: "dp_replicate,dp_shard".
        Collective on first use."""
        text = axes_text(axes)
        group = self._groups.get(axes)
        if group is None:
            group = Group(new_handle(library().alq_mesh_group, self._live(),
                                     text, owner=self.context),
                          self.context)
            self._groups[axes] = group
        return group

    def ranks(self, axes: str, rank: int) -> List[int]:
        """World ranks of the group over the axes that holds world rank
        `rank`."""
        out = (ctypes.c_int32 * max(self.context.size, 1))()
        count = ctypes.c_int32()
        check(library().alq_mesh_ranks, self._live(), axes_text(axes), rank, out,
              len(out), ctypes.byref(count))
        return list(out[:count.value])
