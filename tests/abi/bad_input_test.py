"""Every function with bad input gives a status: no crash, no hang.

Driven by abi/aliquot.json, so a new function is covered without a new line
here.  Each case runs in a child of its own, with a deadline.

Usage: bad_input_test.py LIBRARY
"""

import ctypes
import json
import os
import signal
import sys
import traceback
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bindings", "python"))
sys.dont_write_bytecode = True

from aliquot import _ffi  # noqa: E402

LIBRARY = sys.argv[1]
DEADLINE_S = 20
# Large enough for any count these cases pass as valid.
SCRATCH = ctypes.create_string_buffer(1 << 16)

with open(os.path.join(ROOT, "abi", "aliquot.json"), encoding="ascii") as file:
    ABI = json.load(file)
HANDLES = set(ABI["handles"])
STRUCTS = {s.__name__: s for s in _ffi.STRUCTS}
SIZED = {s["name"] for s in ABI["structs"]
         if s["fields"][0]["name"] == "struct_size"} - {"alq_error"}


def in_child(body):
    """'' if body() returns, else what went wrong."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.alarm(DEADLINE_S)
        try:
            body()
            os._exit(0)
        except BaseException:
            os.write(write, traceback.format_exc()[-2000:].encode())
            os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return "hung" if name == "SIGALRM" else f"ended by {name}"
    return text


def error():
    return _ffi.alq_error(struct_size=ctypes.sizeof(_ffi.alq_error))


class World:
    """One of each kind of object, in a world of one rank."""

    def __init__(self, lib):
        self.lib = lib
        self.handles = {}
        desc = _ffi.alq_open_desc(
            struct_size=ctypes.sizeof(_ffi.alq_open_desc),
            bootstrap=_ffi.ALQ_BOOTSTRAP_SINGLE, timeout_ns=5 * 10**9)
        ctx = self.make("alq_context", lib.alq_open, _ffi.ALQ_ABI_VERSION,
                        ctypes.byref(desc))
        group = self.make("alq_group", lib.alq_group_world, ctx)
        self.make("alq_event", lib.alq_event_create, ctx)
        self.make("alq_buffer", lib.alq_buffer_alloc, ctx, 4096)
        mesh = self.make("alq_mesh", lib.alq_mesh_create, ctx, b"")
        engine = _ffi.alq_engine_desc(
            struct_size=ctypes.sizeof(_ffi.alq_engine_desc))
        self.make("alq_engine", lib.alq_engine_create, mesh,
                  ctypes.byref(engine), may_fail=True)
        self.stream = _ffi.alq_stream()
        if lib.alq_stream_create(ctx, ctypes.byref(self.stream), None):
            raise AssertionError("no stream")
        self.make("alq_work", lib.alq_group_barrier, group,
                  ctypes.byref(self.stream))

    def make(self, name, function, *args, may_fail=False):
        out, err = ctypes.c_void_p(), error()
        status = function(*args, ctypes.byref(out), ctypes.byref(err))
        if status != 0 and not may_fail:
            raise AssertionError(f"{name}: {err.message.decode()}")
        self.handles[name] = out
        return out

    def release(self, name):
        short = name.removeprefix("alq_")
        function = ("alq_release" if short == "context"
                    else f"alq_{short}_release")
        getattr(self.lib, function)(self.handles[name])


def nulls(function):
    return [None if a["type"]["pointers"] else 0 for a in function["args"]]


def with_handles(world, function):
    """Live handles where handles go, else NULL and 0."""
    args = nulls(function)
    for i, arg in enumerate(function["args"]):
        kind = arg["type"]
        if kind["base"] in HANDLES and kind["pointers"] == 1:
            args[i] = world.handles.get(kind["base"])
    return args


def with_memory(world, function):
    """As with_handles, and every other pointer points to something."""
    args = with_handles(world, function)
    for i, arg in enumerate(function["args"]):
        kind = arg["type"]
        if not kind["pointers"] or (kind["base"] in HANDLES
                                    and kind["pointers"] == 1):
            continue
        if kind["base"] in STRUCTS:
            struct = STRUCTS[kind["base"]]()
            if kind["base"] in SIZED or kind["base"] == "alq_error":
                struct.struct_size = ctypes.sizeof(struct)
            args[i] = ctypes.pointer(struct)
        elif kind["base"] == "char" and kind["const"]:
            args[i] = b"?"
        else:
            expected = _ffi.FUNCTIONS[function["name"]][1][i]
            args[i] = ctypes.cast(SCRATCH, expected)
    return args


def returns_status(function):
    return function["result"]["base"] == "alq_status"


def call(lib, function, args, must_fail):
    """Calls; a failure must have words, whoever asks for them."""
    status = getattr(lib, function["name"])(*args)
    if not returns_status(function):
        return
    if must_fail:
        assert status != 0, "accepted"
    names = lib.alq_status_name(status)
    assert status == _ffi.ALQ_UNKNOWN or names != b"ALQ_UNKNOWN", status
    err = args[-1]
    if status != 0 and err:
        told = err.contents
        assert told.code == status, (told.code, status)
        assert len(told.message) > 10, told.message


def numbers(function):
    return [i for i, a in enumerate(function["args"])
            if not a["type"]["pointers"]]


class BadInput(unittest.TestCase):
    def sweep(self, body, functions=None):
        done = 0
        for function in functions or ABI["functions"]:
            with self.subTest(function["name"]):
                self.assertEqual(in_child(lambda: body(function)), "")
            done += 1
        self.assertGreater(done, 0)

    def test_nothing_at_all(self):
        def body(function):
            lib = _ffi.load(LIBRARY)
            args = nulls(function)
            call(lib, function, args, must_fail=True)
            if returns_status(function):
                args[-1] = ctypes.pointer(error())
                call(lib, function, args, must_fail=True)

        self.sweep(body)

    def test_handles_and_nothing_else(self):
        def body(function):
            lib = _ffi.load(LIBRARY)
            args = with_handles(World(lib), function)
            call(lib, function, args, must_fail=False)

        self.sweep(body)

    def test_impossible_struct_sizes(self):
        def sized(function):
            return [i for i, a in enumerate(function["args"])
                    if a["type"]["base"] in SIZED]

        def body(function):
            lib = _ffi.load(LIBRARY)
            world = World(lib)
            for i in sized(function):
                for size in (0, 1, 7, 0x7fffffff, 0xffffffff):
                    args = with_memory(world, function)
                    args[i].contents.struct_size = size
                    call(lib, function, args, must_fail=True)

        self.sweep(body, [f for f in ABI["functions"] if sized(f)])

    def test_numbers_out_of_range(self):
        def body(function):
            lib = _ffi.load(LIBRARY)
            world = World(lib)
            for bits in (-1, -(1 << 63), (1 << 63) - 1, 1 << 62):
                args = with_memory(world, function)
                for i in numbers(function):
                    kind = _ffi.FUNCTIONS[function["name"]][1][i]
                    size_t = function["args"][i]["type"]["base"] == "size_t"
                    args[i] = 0 if size_t else kind(
                        int(bits) if kind is not ctypes.c_double
                        else float("nan"))
                call(lib, function, args, must_fail=False)

        self.sweep(body, [f for f in ABI["functions"] if numbers(f)])

    def test_released_handles(self):
        def first_handle(function):
            kind = function["args"][0]["type"] if function["args"] else {}
            known = kind.get("base") in HANDLES - {"alq_api"}
            return kind["base"] if known and kind["pointers"] == 1 else None

        def body(function):
            lib = _ffi.load(LIBRARY)
            world = World(lib)
            name = first_handle(function)
            if not world.handles.get(name):
                return
            world.release(name)
            args = with_memory(world, function)
            call(lib, function, args, must_fail=True)

        self.sweep(body, [f for f in ABI["functions"] if first_handle(f)])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
