"""Finds libaliquot, loads it once, and compares its layout with ours.

In this order: the file that ALIQUOT_LIBRARY names; beside the package (a
wheel's aliquot/lib); the newest build of the source tree that the package lies
in; the system's loader.  Nothing is loaded before the first use.
"""

import ctypes
import glob
import os
from typing import Any, List, Optional

from . import _ffi

VARIABLE = "ALIQUOT_LIBRARY"
NAME = "libaliquot.so.%d" % _ffi.ALQ_ABI_MAJOR
PACKAGE = os.path.dirname(os.path.abspath(__file__))

_loaded: Optional[Any] = None
_path: Optional[str] = None


def build_trees() -> List[str]:
    """Builds of the source tree around the package: release, then by age."""
    tree = os.path.dirname(os.path.dirname(os.path.dirname(PACKAGE)))
    if not os.path.exists(os.path.join(tree, "include", "aliquot")):
        return []
    builds = [os.path.dirname(os.path.dirname(found)) for found in
              glob.glob(os.path.join(tree, "build", "*", "lib", NAME))]
    release = os.path.join(tree, "build", "release")
    return sorted(builds, key=lambda b: (b != release, -os.path.getmtime(b)))


def candidates() -> List[str]:
    named = os.environ.get(VARIABLE)
    if named:
        return [named]
    beside = os.path.join(PACKAGE, "lib", NAME)
    return ([beside] if os.path.exists(beside) else []) + [
        os.path.join(build, "lib", NAME) for build in build_trees()] + [NAME]


def library() -> Any:
    """The library, loaded on first use."""
    global _loaded, _path
    if _loaded is not None:
        return _loaded
    failures = []
    for path in candidates():
        try:
            loaded = _ffi.load(path)
        except (OSError, AttributeError) as error:
            failures.append("%s (%s)" % (path, error))
            continue
        _loaded, _path = loaded, path
        return loaded
    raise ImportError("libaliquot was not found or is of another version: " +
                      "; ".join(failures) + "; set " + VARIABLE +
                      " to its path")


def library_path() -> str:
    library()
    assert _path is not None
    return _path


def text_of(call: Any, *args: Any) -> str:
    """What a function of the form (..., buf, cap, need, err) writes."""
    from ._error import check
    need = ctypes.c_size_t()
    cap = 4096
    while True:
        buffer = ctypes.create_string_buffer(cap)
        check(call, *args, buffer, cap, ctypes.byref(need))
        if need.value <= cap:
            return buffer.value.decode("utf-8", "replace")
        cap = need.value
