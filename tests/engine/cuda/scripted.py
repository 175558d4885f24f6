"""A scripted host whose work is on the caller's stream, for any device.

Every pass copies or uses what it sees by operations of ops.cc: on the CPU device
they run at once, on CUDA they are put on the caller's stream, so that the host
waits for nothing in a step.  The gradients depend on the parameters that forward
and backward saw: stale, early or late bytes change the result.
"""

import array
import ctypes
import hashlib
import json
import os
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import host  # noqa: E402
from host import _ffi  # noqa: E402
from placement_model import (DTYPES, PARAMS, TIED, UNITS,  # noqa: E402
                             draw, to_bytes)

F, F_NOGRAD, R, B = (_ffi.ALQ_PASS_F, _ffi.ALQ_PASS_F_NOGRAD, _ffi.ALQ_PASS_R,
                     _ffi.ALQ_PASS_B)
WIDTH = {"f64": 8, "f32": 4, "bf16": 2}
KINDS = {"f64": 0, "f32": 1, "bf16": 2}
DELAY_US = 100  # longest, of a stream that is neither fast nor slow
THREAD_LOCAL = 1  # mode of a capture


class Op(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("dtype", ctypes.c_int32),
                ("count", ctypes.c_int64), ("view", ctypes.c_void_p),
                ("seen", ctypes.c_void_p), ("draw", ctypes.c_void_p),
                ("grad", ctypes.c_void_p), ("adds", ctypes.c_int32),
                ("spoils", ctypes.c_int32)]


class Doubles:
    """The stand-ins, once the library has loaded them."""

    def __init__(self, folder):
        self.cuda = ctypes.CDLL(os.path.join(folder, "libcuda.so.1"))
        self.nccl = ctypes.CDLL(os.path.join(folder, "libnccl.so.2"))
        self.cuda.double_count.restype = ctypes.c_int64
        self.cuda.double_mutated.restype = ctypes.c_int64
        self.nccl.double_nccl_count.restype = ctypes.c_int64

    def count(self, what):
        return self.cuda.double_count(what.encode())


class DriverError(RuntimeError):
    """The stand-in for the driver refused a call of the host."""


class Stream:
    """Where the operations of one rank go: its thread, or a stream."""

    def __init__(self, world, ops, doubles):
        self.world, self.ops, self.doubles = world, ops, doubles
        self.run = ops.alq_test_op
        self.keep = []  # what is used until the stream is synchronised
        self.streams = [world.stream]

    def put(self, op):
        if self.world.stream is None:
            self.run(ctypes.byref(op))
            return
        self.keep.append(op)
        code = self.doubles.cuda.double_enqueue(
            ctypes.c_void_p(self.world.stream.handle), self.run,
            ctypes.byref(op))
        assert code == 0, code

    def slow(self, longest_us):
        if self.world.stream is not None:
            self.doubles.cuda.double_delay_us(ctypes.c_int64(longest_us))

    def change(self):
        """Another stream of the caller's: from now on calls get that one."""
        if self.world.stream is None:
            return
        if len(self.streams) == 1:
            more = _ffi.alq_stream()
            self.world.library.call("alq_stream_create", self.world.ctx,
                                    ctypes.byref(more))
            self.streams.append(more)
        here = self.streams.index(self.world.stream)
        self.world.stream = self.streams[1 - here]

    def sync(self):
        here = self.world.stream
        for self.world.stream in self.streams:
            self.world.sync()
        self.world.stream = here
        self.keep.clear()

    # ---- a CUDA graph of what is called between begin and end
    def begin_capture(self):
        self.call("cuStreamBeginCapture_v2", self.handle(), THREAD_LOCAL)

    def end_capture(self):
        graph, self.graph = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuStreamEndCapture", self.handle(), ctypes.byref(graph))
        self.context(lambda: self.call(
            "cuGraphInstantiateWithFlags", ctypes.byref(self.graph), graph,
            ctypes.c_ulonglong(0)))
        self.call("cuGraphDestroy", graph)

    def replay(self):
        self.call("cuGraphLaunch", self.graph, self.handle())

    def end_graph(self):
        self.call("cuGraphExecDestroy", self.graph)

    def context(self, body):
        current = ctypes.c_void_p()
        self.call("cuStreamGetCtx", self.handle(), ctypes.byref(current))
        self.call("cuCtxPushCurrent_v2", current)
        try:
            body()
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(current))

    def handle(self):
        return ctypes.c_void_p(self.world.stream.handle)

    def call(self, name, *args):
        code = getattr(self.doubles.cuda, name)(*args)
        if code != 0:
            raise DriverError(f"{name} returned {code}")


class Scripted:
    """The model of placement_model.py in one rank's engine."""

    def __init__(self, world, cell, stream):
        self.world, self.cell, self.stream = world, cell, stream
        self.dtype = cell.dtype
        size = WIDTH[self.dtype]
        self.engine = host.Engine(world, poison=int(cell.poison))
        self.ids = [self.engine.add_param(n, shape, t, DTYPES[self.dtype])
                    for n, shape, t, _ in PARAMS]
        self.counts = [1] * len(PARAMS)
        for i, (_, shape, _, _) in enumerate(PARAMS):
            for n in shape:
                self.counts[i] *= n
        self.units = [[i for i, p in zip(self.ids, PARAMS) if p[3] == u]
                      for u in range(UNITS)]
        self.units[-1].append(self.ids[TIED])
        for u, params in enumerate(self.units):
            self.engine.add_unit(f"u{u}", params, root=u == 0)
        for unit, masks in cell.places.items():
            self.engine.place(unit, *masks)
        self.engine.plan_and_commit(optimizer=cell.optimizer, **cell.plan)
        for i in self.ids:
            data = to_bytes(self.dtype, draw(PARAMS[i][0], self.counts[i]))
            self.engine.write(i, data, self.counts[i])
        self.seen = [ctypes.create_string_buffer(max(n * size, 1))
                     for n in self.counts]
        self.draws = {}
        self.taken = 0  # steps so far
        if world.stream is not None:
            self.stream.doubles.cuda.double_engine(
                world.stream.device_id, self.bundles())

    def bundles(self):
        text = ctypes.create_string_buffer(1 << 16)
        self.engine.call("alq_engine_plan_text", _ffi.ALQ_FORMAT_JSON, text,
                         len(text), None)
        return len(json.loads(text.value)["bundles"])

    def op(self, **fields):
        self.stream.put(Op(dtype=KINDS[self.dtype], **fields))

    def look(self, unit, kind):
        """A pass that copies what it sees."""
        view = self.begin(unit, kind)
        for k, p in enumerate(self.units[unit]):
            if self.counts[p]:
                self.op(kind=0, count=self.counts[p], view=view.params[k],
                        seen=ctypes.addressof(self.seen[p]))
        return view

    def begin(self, unit, kind, push=False):
        return self.engine.begin(unit, kind, push, sync=False)

    def drawn(self, key, count):
        """Numbers that are not changed while streams may read them."""
        if key not in self.draws:
            self.draws[key] = array.array("d", draw(key, count))
        return self.draws[key].buffer_info()[0]

    def microbatch(self, step, number, last, spoil=None):
        self.engine.microbatch(_ffi.ALQ_TRAIN, 1.0 + number % 3, last)
        if self.cell.empty and step % 2 == 1:  # all gradients are zero
            self.engine.microbatch_end()
            return
        for u in range(UNITS):
            self.look(u, F)
            self.engine.end(u, F)
        stops = 2 if self.cell.passes == "stops" and self.taken > 0 else 0
        for u in reversed(range(stops, UNITS)):
            self.backward(u, step, number, spoil)
        self.engine.microbatch_end()

    def backward(self, u, step, number, spoil):
        how = self.cell.passes
        if how == "recompute" and u in (1, 2):
            self.look(u, R)
            self.engine.end(u, R)
        view = self.begin(u, B, push=how == "push")
        if how == "recompute inside" and u in (1, 2):
            self.look(u, R)  # and never ends
        if how == "two backwards" and u == 2:
            for k, p in enumerate(self.units[u]):
                self.gradient(view, k, p, f"{p} {step} {number} first",
                              view.grads[k], view.betas[k], False)
            view = self.begin(u, B)
        for k, p in enumerate(self.units[u]):
            name, _, trainable, home = PARAMS[p]
            if not trainable:
                continue
            if how == "unused" and name == "d":
                continue  # counts as zero
            if how == "push":
                # A tied parameter's gradient is pushed once.
                if u == home:
                    self.push(view, k, p, f"{name} {step} {number}",
                              spoil == p)
                continue
            if self.counts[p]:
                self.gradient(view, k, p, f"{name} {step} {number} {u}",
                              view.grads[k], view.betas[k], spoil == p)
            if u == home:
                self.engine.ready(p)
        self.engine.end(u, B)

    def gradient(self, view, k, p, key, grad, adds, spoils):
        self.op(kind=1, count=self.counts[p], view=view.params[k],
                seen=ctypes.addressof(self.seen[p]),
                draw=self.drawn(key, self.counts[p]), grad=grad,
                adds=1 if adds else 0, spoils=1 if spoils else 0)

    def push(self, view, k, p, key, spoils):
        made = ctypes.create_string_buffer(
            max(self.counts[p] * WIDTH[self.dtype], 1))
        self.stream.keep.append(made)
        if self.counts[p]:
            self.gradient(view, k, p, key, ctypes.addressof(made), False,
                          spoils)
        shape = (ctypes.c_int64 * 1)(self.counts[p])
        tensor = _ffi.alq_tensor(
            data=ctypes.addressof(made), ndim=1, lanes=1, shape=shape,
            **self.world.device(), code=4 if self.dtype == "bf16" else 2,
            bits=8 * WIDTH[self.dtype])
        self.engine.call("alq_grad_push", p, ctypes.byref(tensor),
                         self.world.on())

    def evaluate(self):
        self.engine.microbatch(_ffi.ALQ_EVAL)
        for u in range(UNITS):
            self.look(u, F_NOGRAD)
            self.engine.end(u, F_NOGRAD)
        self.engine.microbatch_end()

    def leave(self, what):
        """A step begins, and ends with this call, whose work is late."""
        late = dict(kind=2, count=10_000)
        if what == "step":
            for m in range(self.cell.microbatches):
                self.microbatch(9, m, m + 1 == self.cell.microbatches)
            # All of it is late: a sleep before would only delay the look of
            # what frees memory as well.
            self.stream.slow(3000)
            self.engine.step(0.01, 0.1, self.cell.clip, False)
            return
        self.engine.microbatch(_ffi.ALQ_TRAIN)
        for u in range(UNITS):
            self.look(u, F)
            self.engine.end(u, F)
        if what == "microbatch":  # its own work: a pass that did not end
            for u in reversed(range(UNITS)):
                self.backward(u, 9, 0, None)
            self.look(0, R)
            self.op(**late)
            self.engine.microbatch_end()
            return
        if what == "begin":
            self.op(**late)
        if what == "push":  # one of the unit's two gradients
            view = self.begin(2, B, push=True)
            self.op(**late)
            self.push(view, 0, 6, "push", False)
            return
        view = self.begin(3, B)
        if what == "end":
            self.op(**late)
            self.gradient(view, 0, 8, "end", view.grads[0], False, False)
            self.engine.end(3, B)

    def hold(self):
        """All parameters at once, as they are read for a checkpoint."""
        unit = _ffi.ALQ_UNIT_ALL
        self.engine.call("alq_unit_hold", unit)
        self.evaluate()
        self.engine.call("alq_unit_unhold", unit)

    def read(self, what):
        out = []
        for p in self.ids:
            trainable = PARAMS[p][2]
            if not trainable and what != _ffi.ALQ_VALUE:
                continue
            wide = 8 if self.dtype == "f64" else 4
            if not trainable:
                wide = WIDTH[self.dtype]
            data = ctypes.create_string_buffer(max(self.counts[p] * wide, 1))
            self.engine.call("alq_param_read", p, what, data, 0,
                             self.counts[p], 0)
            out.append(data.raw[:self.counts[p] * wide])
        return b"".join(out)

    def looks(self):
        """A digest of what the last passes saw."""
        self.stream.sync()
        return digest(b"".join(s.raw for s in self.seen))


def collect(world, stream):
    """Sums of one group from two streams, ordered by nobody but the group."""
    call, count = world.library.call, 5000
    group = world.library.make_handle("alq_mesh_group", world.mesh, b"dp_shard")
    sums = []
    for round_ in range(4):
        buffer = world.library.make_handle("alq_buffer_alloc", world.ctx,
                                           8 * count)
        at = world.library.c.alq_buffer_data(buffer)
        numbers = array.array("d", draw(f"{world.rank} {round_}", count))
        ctypes.memmove(at, numbers.buffer_info()[0], 8 * count)
        sums.append((buffer, at))
        stream.change()
        call("alq_group_all_reduce", group, at, at, count, _ffi.ALQ_F64,
             _ffi.ALQ_SUM, world.on(), None)
    stream.sync()
    found = digest(b"".join(ctypes.string_at(at, 8 * count)
                            for _, at in sums))
    for buffer, _ in sums:
        world.library.c.alq_buffer_release(buffer)
    world.library.c.alq_group_release(group)
    return found


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def told(report):
    """What a report says, in comparable form."""
    if report is None:
        return None
    return (report.grad_norm.hex(), report.weight_sum.hex(), report.step,
            report.skipped, report.bad_param, report.bad_rank,
            report.bad_microbatch)


def one_step(model, step, replayed=False):
    cell = model.cell
    spoil = cell.nan if step == 1 and model.world.rank == 0 else None
    for m in range(cell.microbatches):
        number = model.world.rank * cell.microbatches + m
        model.microbatch(0 if cell.captures else step, number,
                         m + 1 == cell.microbatches, spoil)
        if cell.evaluates and m == 0:
            model.evaluate()
    model.taken += 1
    wants = step in cell.reports and not replayed
    return told(model.engine.step(0.01, 0.1, cell.clip, wants))


def nothing(point, model):
    pass


def run(world, cell, ops, doubles, at=nothing):
    """All steps of a cell on one rank: what came of it, in comparable form.
    at(point, model) is called on the way: "committed", "step", "released"."""
    stream = Stream(world, ops, doubles)
    model = Scripted(world, cell, stream)
    at("committed", model)
    seen = [collect(world, stream)] if cell.collects else []
    reports = []
    for step in range(cell.steps):
        if cell.around and step == 1:
            model.evaluate()
        if cell.captures and step == 1 and world.stream is not None:
            replay(model, stream, cell.steps - 1)
            break
        at("step", model)
        reports.append(one_step(model, step))
        if cell.numbers and step == 0:
            model.engine.call("alq_step_set", 40)
        if cell.streams == 2:
            stream.change()
        if cell.holds:
            model.hold()
    if cell.captures:
        reports = reports[:1]
    if cell.around:
        model.evaluate()
    seen.append(model.looks())
    for what in (_ffi.ALQ_VALUE, _ffi.ALQ_GRAD, *cell.states()):
        seen.append(digest(model.read(what)))
    if cell.drops:  # released while its streams are busy
        model.leave(cell.drops)
        at("released", model)
        model.engine.c.alq_engine_release(model.engine.handle)
        stream.sync()
        stream.slow(DELAY_US)
    else:
        model.engine.close()
    return reports, seen


def replay(model, stream, times):
    """One step as a CUDA graph, launched again and again."""
    stream.sync()
    stream.begin_capture()
    one_step(model, 1, replayed=True)
    keep = list(stream.keep)
    stream.end_capture()
    for _ in range(times):
        stream.replay()
    stream.sync()
    stream.end_graph()
    del keep


class Meeting:
    """Ranks that are threads meet here between what is measured."""

    def __init__(self, ranks):
        self.barrier = threading.Barrier(ranks, timeout=host.TIMEOUT_S)

    def wait(self):
        return self.barrier.wait() == 0
