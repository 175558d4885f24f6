"""python -m aliquot ...: hands over to the aliquot command."""

import glob
import json
import os
import sys
from typing import List, Optional

from . import _library


def command_path() -> Optional[str]:
    """The command beside the package, else in a build of the source tree, else
    in the prefix of the library that is loaded."""
    places = [os.path.join(_library.PACKAGE, "bin", "aliquot")]
    places += [os.path.join(b, "bin", "aliquot")
               for b in _library.build_trees()]
    named = os.environ.get(_library.VARIABLE)
    if named:
        places.insert(0, os.path.join(os.path.dirname(os.path.dirname(
            os.path.abspath(named))), "bin", "aliquot"))
    return next((p for p in places if os.access(p, os.X_OK)), None)


def wheel_folders() -> List[str]:
    """Where CUDA, NCCL and UCX wheels of this Python keep their libraries."""
    found = []
    for site in sys.path:
        for pattern in ("nvidia/*/lib", "libucx*/lib"):
            found += sorted(glob.glob(os.path.join(glob.escape(site), pattern)))
    return [f for f in dict.fromkeys(found) if os.path.isdir(f)]


def main(arguments: Optional[List[str]] = None) -> int:
    if arguments is None:
        arguments = sys.argv[1:]
    command = command_path()
    if arguments[:1] == ["doctor"]:
        for folder in wheel_folders():
            arguments = arguments + ["--library-dir", folder]
    if command is not None:
        sys.stdout.flush()
        os.execv(command, ["aliquot"] + arguments)
    if arguments == ["version"]:
        build = json.loads(_library.library().alq_build_info())
        print("aliquot %s (%s)" % (build["version"], _library.library_path()))
        return 0
    print("the aliquot command is not beside the package and no build holds it",
          file=sys.stderr)
    return 1
