"""Source rules that no compiler checks; one line per finding.

layers    a folder of src/ includes only from the layers above it
borders   examples use public headers only; one backend does not include another
length    a file has at most 400 lines (warning), never more than 800
paths     nothing names a folder of the machine it was written on
syntax    Python and shell scripts parse
"""

import os
import re
import subprocess
import sys

# Layer of each folder.  A file includes from lower numbers and its own folder.
LAYERS = {"base": 0, "trace": 1, "kernels": 1, "device": 2, "comm": 3,
          "mesh": 4, "engine": 5, "tensor": 5, "pipe": 5, "expert": 5,
          "context": 5, "ckpt": 5, "data": 5, "plan": 6, "api": 7}
PUBLIC = {"aliquot"}
# Folders of src/comm that every backend may include.
COMM_SHARED = {"bootstrap"}

WARN_LINES, MOST_LINES = 400, 800
# The contract in one piece, and what is generated from it.
ANY_LENGTH = re.compile(r"^(include/aliquot/aliquot\.h|abi/[^/]+\.(c|cc|h|json|"
                        r"abi)|bindings/python/aliquot/_ffi\.py|LICENSE)$|"
                        r"\.(md|svg|csv)$|^docs/reports/|^tests/.*/golden/")
CODE = (".h", ".hpp", ".c", ".cc", ".cu")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
# Written in parts, so that this file does not name them itself.
MACHINE_PATHS = [re.compile(r"(?:(?<![\w./])|(?<=-[IL]))/" + name + "/")
                 for name in ("wo" + "rk", "ro" + "ot", "ho" + "me")]


def tracked():
    out = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        capture_output=True, check=True).stdout
    return [p for p in out.decode().split("\0") if p and os.path.isfile(p)]


def layer_of(path):
    """(folder, layer) of a source of the library, else (None, None)."""
    parts = path.split("/")
    folder = parts[1] if parts[0] == "src" and len(parts) > 2 else parts[0]
    return (folder, LAYERS[folder]) if folder in LAYERS else (None, None)


def check_include(path, target):
    folder, layer = layer_of(path)
    head = target.split("/")[0]
    if path.startswith("examples/"):
        if head in LAYERS or head == "src":
            return f"examples use public headers only, not {target}"
        return None
    if folder is None or "/" not in target or head in PUBLIC:
        return None
    if head == "abi":
        return None if folder == "api" else f"{folder} includes {target}"
    if head not in LAYERS:
        return f"includes {target}, which is no layer"
    if head != folder and LAYERS[head] >= layer:
        return f"{folder} includes {target}, which is not a layer above it"
    return check_backend(path, target)


def check_backend(path, target):
    mine, theirs = path.split("/"), target.split("/")
    if mine[:2] != ["src", "comm"] or theirs[0] != "comm" or len(theirs) < 3:
        return None
    backend = mine[2] if len(mine) > 3 else None
    if theirs[1] in COMM_SHARED or theirs[1] == backend:
        return None
    # The contract's own file may choose among backends.
    return (f"backend {backend} includes backend {theirs[1]}"
            if backend else None)


def check_code(path, text):
    for target in INCLUDE.findall(text):
        problem = check_include(path, target)
        if problem:
            yield problem


def check_length(path, text):
    lines = text.count("\n")
    if ANY_LENGTH.search(path) or lines <= WARN_LINES:
        return
    if lines > MOST_LINES:
        yield f"{lines} lines; the limit is {MOST_LINES}"
    else:
        print(f"warning: {path}: {lines} lines; aim at {WARN_LINES}")


def check_paths(text):
    for number, line in enumerate(text.split("\n"), 1):
        if any(pattern.search(line) for pattern in MACHINE_PATHS):
            yield f"line {number} names a folder of one machine"


def check_syntax(path, text):
    first = text.split("\n", 1)[0]
    if path.endswith(".py") or (first.startswith("#!") and "python" in first):
        try:
            compile(text, path, "exec")
        except SyntaxError as error:
            yield f"line {error.lineno}: {error.msg}"
    elif first.startswith("#!") and "sh" in first:
        run = subprocess.run(["bash", "-n", path], capture_output=True,
                             text=True, check=False)
        if run.returncode != 0:
            yield run.stderr.strip()


def findings(path):
    with open(path, "rb") as file:
        raw = file.read()
    if b"\0" in raw[:8000] or path.startswith("tests/fuzz/corpus/"):
        return
    text = raw.decode("utf-8")
    if path.endswith(CODE):
        yield from check_code(path, text)
    yield from check_length(path, text)
    yield from check_paths(text)
    yield from check_syntax(path, text)


def main():
    bad = 0
    for path in tracked():
        for finding in findings(path):
            print(f"{path}: {finding}")
            bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
