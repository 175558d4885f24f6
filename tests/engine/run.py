"""Runs a test script if a module is there, else ends with 77: skipped.

Usage: run.py MODULE SCRIPT [arguments]
"""

import importlib.util
import os
import runpy
import sys

module, script = sys.argv[1:3]
if importlib.util.find_spec(module) is None:
    print(f"skipped: no {module} in {sys.executable}; run scripts/setup" +
          (" --with torch" if module == "torch" else ""))
    sys.exit(77)
sys.argv = sys.argv[2:]
sys.path[0] = os.path.dirname(os.path.abspath(script))
runpy.run_path(script, run_name="__main__")
