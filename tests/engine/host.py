"""What a Python host needs of the engine, over the generated ctypes module.

`Engine` is one rank's engine with Python values in and out; every refused call
raises `Refused` with the library's code and message.  `run_ranks` runs ranks as
threads of this process: ctypes lets go of the interpreter while a call waits;
`run_processes` runs a script on ranks of their own.

ALIQUOT_TEST_DEVICE=cuda puts every rank on a CUDA device of its own (rank modulo
ALIQUOT_DOUBLE_DEVICES), and every call that takes a stream on one of the
caller's.  The library then is told by ALIQUOT_HINTS where the stand-ins of
tests/doubles are.  Their device memory is the host's: it may be touched by the
host once the stream is synchronised, which `begin` does unless told otherwise.
"""

import ctypes
import itertools
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bindings", "python"))

from aliquot import _ffi  # noqa: E402

TIMEOUT_S = 60
ON_CUDA = os.environ.get("ALIQUOT_TEST_DEVICE") == "cuda"
STRATEGIES = {"ddp": _ffi.ALQ_STRATEGY_DDP, "zero1": _ffi.ALQ_STRATEGY_ZERO1,
              "zero2": _ffi.ALQ_STRATEGY_ZERO2, "fsdp": _ffi.ALQ_STRATEGY_FSDP}
ADAMW = dict(beta1=0.9, beta2=0.95, eps=1e-8)


class Refused(RuntimeError):
    def __init__(self, error):
        super().__init__(error.message.decode())
        self.code = error.code


def make(struct, **fields):
    return struct(struct_size=ctypes.sizeof(struct), **fields)


def array(ctype, values):
    return (ctype * max(len(values), 1))(*values)


class Library:
    def __init__(self, path):
        self.c = _ffi.load(path)

    def call(self, name, *args):
        error = make(_ffi.alq_error)
        if getattr(self.c, name)(*args, ctypes.byref(error)) != _ffi.ALQ_OK:
            raise Refused(error)

    def make_handle(self, name, *args):
        out = ctypes.c_void_p()
        self.call(name, *args, ctypes.byref(out))
        return out


class World:
    """One rank: a context and a mesh ("": dp_shard over all ranks)."""

    def __init__(self, library, mesh="", **place):
        self.library = library
        place.setdefault("timeout_ns", TIMEOUT_S * 10**9)
        if ON_CUDA:
            rank = place.get("rank", os.environ.get("ALIQUOT_RANK", 0))
            devices = int(os.environ.get("ALIQUOT_DOUBLE_DEVICES", 2))
            place.setdefault("device_type", _ffi.ALQ_DEVICE_CUDA)
            place.setdefault("device_id", int(rank) % devices)
        desc = make(_ffi.alq_open_desc, **place)
        self.ctx = library.make_handle("alq_open", _ffi.ALQ_ABI_VERSION,
                                       ctypes.byref(desc))
        self.rank = library.c.alq_context_rank(self.ctx)
        self.size = library.c.alq_context_size(self.ctx)
        self.mesh = library.make_handle("alq_mesh_create", self.ctx,
                                        mesh.encode())
        # What calls that take a stream get; None: the calling thread, now.
        self.stream = None
        if place.get("device_type") == _ffi.ALQ_DEVICE_CUDA:
            self.stream = _ffi.alq_stream()
            library.call("alq_stream_create", self.ctx,
                         ctypes.byref(self.stream))

    def device(self):
        """Where the engine's memory is, as fields of alq_tensor."""
        if self.stream is None:
            return {"device_type": _ffi.ALQ_DEVICE_CPU}
        return {"device_type": self.stream.device_type,
                "device_id": self.stream.device_id}

    def on(self):
        return None if self.stream is None else ctypes.byref(self.stream)

    def sync(self):
        """What the caller's stream has so far is done."""
        if self.stream is not None:
            self.library.call("alq_stream_sync", self.ctx, self.on(), 0)

    def close(self):
        self.library.call("alq_close", self.ctx, 0)

    def release(self):
        if self.stream is not None:
            self.library.c.alq_stream_release(self.ctx, self.on())
        self.library.c.alq_mesh_release(self.mesh)
        self.library.c.alq_release(self.ctx)


class Engine:
    """Calls of one rank's engine.  Freed memory is filled with NaN."""

    def __init__(self, world, **desc):
        self.world = world
        self.c, self.call_ = world.library.c, world.library.call
        desc = make(_ffi.alq_engine_desc, **{"poison": 1, **desc})
        self.handle = world.library.make_handle("alq_engine_create", world.mesh,
                                                ctypes.byref(desc))

    def call(self, name, *args):
        self.call_(name, self.handle, *args)

    def add_param(self, name, shape, trainable=True, dtype=_ffi.ALQ_F64):
        desc = make(_ffi.alq_param_desc, name=name.encode(), dtype=dtype,
                    flags=_ffi.ALQ_PARAM_TRAINABLE if trainable else 0,
                    shape=array(ctypes.c_int64, shape), ndim=len(shape))
        out = ctypes.c_int64()
        self.call("alq_param_add", ctypes.byref(desc), ctypes.byref(out))
        return out.value

    def add_unit(self, name, params, root=False):
        out = ctypes.c_int64()
        self.call("alq_unit_add", name.encode(), array(ctypes.c_int64, params),
                  len(params), _ffi.ALQ_UNIT_ROOT if root else 0,
                  ctypes.byref(out))
        return out.value

    def place(self, unit, params, grads, states):
        """Axis masks of one unit instead of the plan's strategy."""
        self.call("alq_unit_place", unit, params, grads, states)

    def plan_and_commit(self, optimizer=None, **plan):
        kind = dict(optimizer or {"kind": _ffi.ALQ_OPTIM_ADAMW, **ADAMW})
        optimizer = make(_ffi.alq_optimizer_desc, **kind)
        if self.world.stream is not None and \
                plan.get("gather") == _ffi.ALQ_GATHER_MAP:
            plan["gather"] = _ffi.ALQ_GATHER_COPY  # devices map nothing
        self.call("alq_optimizer_set", 0, ctypes.byref(optimizer))
        report = make(_ffi.alq_plan_report)
        self.call("alq_engine_plan",
                  ctypes.byref(make(_ffi.alq_plan_desc, **plan)),
                  ctypes.byref(report))
        self.call("alq_engine_commit", None)
        return report

    def write(self, param, address, count):
        self.call("alq_param_write", param, _ffi.ALQ_VALUE, address, 0, count, 0)

    def read(self, param, address, count):
        self.call("alq_param_read", param, _ffi.ALQ_VALUE, address, 0, count, 0)

    def microbatch(self, mode, weight=1.0, last=True):
        scale = ctypes.c_double()
        self.call("alq_microbatch_begin", mode, weight, last,
                  ctypes.byref(scale))
        return scale.value

    def begin(self, unit, kind, push=False, sync=True):
        """The unit's view; sync: the host may touch it."""
        view = make(_ffi.alq_unit_view, flags=_ffi.ALQ_VIEW_PUSH if push else 0)
        self.call("alq_unit_begin", unit, kind, self.world.on(),
                  ctypes.byref(view))
        if sync:
            self.world.sync()
        return view

    def end(self, unit, kind):
        self.call("alq_unit_end", unit, kind, self.world.on())

    def ready(self, param):
        self.call("alq_grad_ready", param, self.world.on())

    def microbatch_end(self):
        self.call("alq_microbatch_end", self.world.on())

    def step(self, lr, weight_decay=0.0, clip=0.0, wants_report=True):
        desc = make(_ffi.alq_step_desc, lr=array(ctypes.c_double, [lr]),
                    weight_decay=array(ctypes.c_double, [weight_decay]),
                    n_groups=1, clip_norm=clip)
        report = make(_ffi.alq_step_report) if wants_report else None
        self.call("alq_step", ctypes.byref(desc), self.world.on(),
                  None if report is None else ctypes.byref(report))
        return report

    def report(self):
        text = ctypes.create_string_buffer(1 << 16)
        self.call("alq_engine_report", text, len(text), None)
        return json.loads(text.value)

    def close(self):
        self.call("alq_engine_close", 0)
        self.c.alq_engine_release(self.handle)


def wait_for_end(thread):
    """join() returns before a framework's thread-local destructors have run;
    one that runs while the interpreter ends aborts the process."""
    deadline = time.monotonic() + TIMEOUT_S
    while (os.path.exists("/proc/self/task/%d" % thread.native_id) and
           time.monotonic() < deadline):
        time.sleep(0.001)


_names = itertools.count()


def run_ranks(library, size, body, each=None, **place):
    """body(world) on every rank, as threads; its results in rank order.  place:
    mesh, and further fields of alq_open_desc; each(rank): that rank's own."""
    name = b"python-%d-%d" % (os.getpid(), next(_names))
    results, failures = [None] * size, []

    def rank_main(rank):
        world = None
        try:
            world = World(library, bootstrap=_ffi.ALQ_BOOTSTRAP_LOCAL,
                          rank=rank, world_size=size, world_name=name,
                          **place, **(each(rank) if each else {}))
            results[rank] = body(world)
            world.close()
        except BaseException as error:  # told to the caller, below
            failures.append((rank, error))
        finally:
            # A failed rank leaves at once: its peers then fail too, and say so.
            if world is not None:
                world.release()

    threads = [threading.Thread(target=rank_main, args=(rank,), daemon=True)
               for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * TIMEOUT_S)
    if any(thread.is_alive() for thread in threads):
        raise TimeoutError("ranks hang")
    for thread in threads:
        wait_for_end(thread)
    if failures:
        rank, error = failures[0]
        raise AssertionError(f"rank {rank}: {error!r}") from error
    return results


def run_processes(script, library, size, **variables):
    """(exit code, output, errors) of the script on every rank, as processes of
    one world, in rank order; variables: of their environment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = "127.0.0.1:%d" % probe.getsockname()[1]
    shared = {"ALIQUOT_WORLD_SIZE": str(size), "ALIQUOT_STORE": address,
              "ALIQUOT_LOCAL_SIZE": str(size),
              "ALIQUOT_SECRET": secrets.token_hex(16), **variables}
    children = [subprocess.Popen(
        [sys.executable, "-B", os.path.abspath(script), library],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **shared, "ALIQUOT_RANK": str(rank),
             "ALIQUOT_LOCAL_RANK": str(rank)}) for rank in range(size)]
    try:
        texts = [child.communicate(timeout=2 * TIMEOUT_S) for child in children]
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
    return [(child.returncode, *text) for child, text in zip(children, texts)]
