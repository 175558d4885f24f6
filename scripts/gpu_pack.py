"""Makes the folder that scripts/gpu_check takes to a machine with a GPU.

bin/ and lib/ hold stripped programs, the library with its kernels, and every
shared library they need that a system need not have; data/ some text.
"""

import ctypes
import glob
import os
import re
import shutil
import subprocess

MOST_BYTES = 64 << 20
PROGRAMS = ("bin/gpt", "tests/gpu_test")
SCRIPTS = ("gpu_check", "gpu_pack.py", "gpu_torch.py")
FOLDERS = ("bin", "lib", "data")
# What the check leaves in a packed tree.
RESULTS = ("gpu_report.json", "report.md", "__pycache__")
# Of the C library: there on every machine, and never to be replaced.
SYSTEM = re.compile(r"(ld-linux.*|linux-vdso|libc|libm|libdl|libpthread|librt)"
                    r"\.so(\.\d+)*$")


class PackError(Exception):
    """What is wrong, for the person at the terminal."""


def libraries_of(path, folder):
    """The shared libraries that a program is linked to: name -> file."""
    said = subprocess.run(
        ["ldd", path], capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "LD_LIBRARY_PATH": folder}).stdout
    found = {}
    for line in said.splitlines():
        match = re.match(r"\s*(\S+) => (\S+)", line)
        if match and not SYSTEM.match(match.group(1)):
            if match.group(2) == "not":
                raise PackError(f"{path} needs {match.group(1)}, which is not "
                                "found")
            found[match.group(1)] = match.group(2)
    return found


def has_kernels(library):
    lib = ctypes.CDLL(library)
    lib.alq_has.restype = ctypes.c_int
    return lib.alq_has(b"device.cuda") != 0


def copy_stripped(source, target):
    shutil.copy2(os.path.realpath(source), target)
    os.chmod(target, 0o755)
    subprocess.run(["strip", "--strip-unneeded", target], check=True,
                   timeout=60)


def total_bytes(tree):
    return sum(os.lstat(os.path.join(folder, name)).st_size
               for folder, _, names in os.walk(tree) for name in names)


def write_text(root, path):
    """The project's own words, for the model to learn."""
    with open(path, "w", encoding="utf-8") as out:
        for name in sorted(glob.glob(os.path.join(root, "*.md")) +
                           glob.glob(os.path.join(root, "docs", "*.md")) +
                           glob.glob(os.path.join(root, "src", "*", "*.cc"))):
            with open(name, encoding="utf-8") as file:
                out.write(file.read())


def missing_libraries(tree):
    """What a packed program would look for outside of the tree."""
    lib = os.path.join(tree, "lib")
    missing = []
    for folder in ("bin", "lib"):
        for name in sorted(os.listdir(os.path.join(tree, folder))):
            path = os.path.join(tree, folder, name)
            for needed, found in libraries_of(path, lib).items():
                if os.path.dirname(os.path.realpath(found)) != \
                        os.path.realpath(lib):
                    missing.append(f"{name} needs {needed} ({found})")
    return missing


def check_place(tree):
    """Nothing but a tree packed before is ever replaced."""
    if not os.path.lexists(tree):
        return
    if not os.path.isdir(tree) or os.path.islink(tree):
        raise PackError(f"{tree} is no folder; name a new one")
    held = set(os.listdir(tree))
    packed = held >= {"gpu_check", "bin"} and \
        held <= {*SCRIPTS, *FOLDERS, *RESULTS}
    if held and not packed:
        raise PackError(f"{tree} holds other things; name a new folder")


def pack(root, built, tree, kernels_needed=True):
    """Fills `tree`; returns its size in bytes."""
    for part in (*PROGRAMS, "lib/libaliquot.so.1"):
        if not os.path.exists(os.path.join(built, part)):
            raise PackError(f"{built} has no {part}; build it first: "
                            "scripts/build release gpt gpu_test")
    library = os.path.join(built, "lib", "libaliquot.so.1")
    if kernels_needed and not has_kernels(library):
        raise PackError(f"{library} was built without nvcc and has no GPU "
                        "kernels; run scripts/setup --with cuda, then build")
    check_place(tree)
    if os.path.exists(tree):
        shutil.rmtree(tree)
    for folder in FOLDERS:
        os.makedirs(os.path.join(tree, folder), exist_ok=True)
    needed = {}
    for program in PROGRAMS:
        path = os.path.join(built, program)
        copy_stripped(path, os.path.join(tree, "bin", os.path.basename(path)))
        needed.update(libraries_of(path, os.path.join(built, "lib")))
    for name, path in needed.items():
        copy_stripped(path, os.path.join(tree, "lib", name))
    for script in SCRIPTS:
        shutil.copy2(os.path.join(root, "scripts", script), tree)
    write_text(root, os.path.join(tree, "data", "text.txt"))
    missing = missing_libraries(tree)
    if missing:
        raise PackError("not complete: " + "; ".join(missing))
    size = total_bytes(tree)
    if size > MOST_BYTES:
        raise PackError(f"{tree} has {size} bytes, more than {MOST_BYTES}")
    return size
