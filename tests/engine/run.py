"""Runs a test script if its modules are there, else ends with 77: skipped.

Usage: run.py MODULE[,MODULE...] SCRIPT [arguments]
"""

import importlib.util
import os
import runpy
import sys

PARTS = {"torch": " --with torch", "transformers": " --with ecosystem",
         "peft": " --with ecosystem"}

modules, script = sys.argv[1:3]
for module in modules.split(","):
    if importlib.util.find_spec(module) is None:
        print(f"skipped: no {module} in {sys.executable}; run scripts/setup" +
              PARTS.get(module, ""))
        sys.exit(77)
sys.argv = sys.argv[2:]
sys.path[0] = os.path.dirname(os.path.abspath(script))
runpy.run_path(script, run_name="__main__")
