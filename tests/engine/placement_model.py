"""A model whose gradients are random and depend on the parameters that the
forward saw: a wrong order of a sum and a stale gather both change bits."""

import array
import ctypes
import functools
import hashlib
import math
import random

import host
from host import _ffi

F, B = _ffi.ALQ_PASS_F, _ffi.ALQ_PASS_B
DTYPES = {"f64": _ffi.ALQ_F64, "f32": _ffi.ALQ_F32, "bf16": _ffi.ALQ_BF16}
STEPS = 2
# name, shape, trainable, unit.  Uneven, empty, frozen, one element; with four
# or eight ranks some own nothing of the small ones; one too large to travel in
# a group's control block.
PARAMS = [("embed", [37, 11], True, 0), ("norm", [9], True, 0),
          ("a", [5, 3], True, 1), ("frozen", [70], False, 1),
          ("empty", [0, 4], True, 1), ("b", [1], True, 1),
          ("c", [67, 71], True, 2), ("d", [130], True, 2),
          ("head", [40], True, 3)]
UNITS = 4
TIED = 0  # "embed" is used by the last unit as well


def to_bytes(dtype, values):
    if dtype == "bf16":
        wide = array.array("I", array.array("f", values).tobytes())
        return array.array("H", (x >> 16 for x in wide)).tobytes()
    return array.array("d" if dtype == "f64" else "f", values).tobytes()


def to_list(dtype, data):
    if dtype == "bf16":
        wide = array.array("I", (x << 16 for x in array.array("H", data)))
        return array.array("f", wide.tobytes()).tolist()
    return array.array("d" if dtype == "f64" else "f", data).tolist()


@functools.lru_cache(maxsize=None)
def draw(name, count):
    source = random.Random(name)
    return [source.uniform(-1, 1) for _ in range(count)]


class Layout:
    """Which microbatches of a step a rank has, and how one rank nests them."""

    def __init__(self, shards, replicas, microbatches, each):
        self.shards, self.replicas = shards, replicas
        self.microbatches, self.each = microbatches, each
        inner = [microbatches, shards] if each else [shards, microbatches]
        self.nesting = "x".join(str(n) for n in [replicas, *inner])
        self.total = shards * replicas * microbatches

    def microbatch(self, rank, index):
        replica, shard = divmod(rank, self.shards)
        if self.each:
            return ((replica * self.microbatches + index) * self.shards +
                    shard)
        return rank * self.microbatches + index


class Trained:
    """The model in one rank's engine."""

    def __init__(self, world, dtype, plan, places, tied=True):
        self.dtype, self.size = dtype, {"f64": 8, "f32": 4, "bf16": 2}[dtype]
        self.engine = host.Engine(world)
        self.ids = [self.engine.add_param(n, shape, t, DTYPES[dtype])
                    for n, shape, t, _ in PARAMS]
        self.counts = [math.prod(p[1]) for p in PARAMS]
        self.units = [[i for i, p in zip(self.ids, PARAMS) if p[3] == u]
                      for u in range(UNITS)]
        if tied:
            self.units[-1].append(self.ids[TIED])
        for u, params in enumerate(self.units):
            self.engine.add_unit(f"u{u}", params, root=u == 0)
        for unit, masks in places.items():
            self.engine.place(int(unit), *masks)
        self.planned = self.engine.plan_and_commit(**plan)
        for i in self.ids:
            data = to_bytes(dtype, draw(PARAMS[i][0], self.counts[i]))
            self.engine.write(i, data, self.counts[i])

    def seen(self, view, unit, values):
        for k, p in enumerate(self.units[unit]):
            data = ctypes.string_at(view.params[k] or 0,
                                    self.counts[p] * self.size) \
                if self.counts[p] else b""
            values[p] = to_list(self.dtype, data)

    def microbatch(self, step, number, last, spoil=None):
        engine, values = self.engine, {}
        engine.microbatch(_ffi.ALQ_TRAIN, 1.0 + number % 3, last)
        for u in range(UNITS):
            self.seen(engine.begin(u, F), u, values)
            engine.end(u, F)
        for u in reversed(range(UNITS)):
            view = engine.begin(u, B)
            for k, p in enumerate(self.units[u]):
                name, _, trainable, home = PARAMS[p]
                if not trainable or not self.counts[p]:
                    if trainable:
                        engine.ready(p)
                    continue
                self.add(view, k, p, f"{name} {step} {number} {u}",
                         values[p], spoil)
                if u == home:
                    engine.ready(p)
            engine.end(u, B)
        engine.microbatch_end()

    def add(self, view, k, p, seed, values, spoil):
        grads = [g + 0.25 * v for g, v in zip(draw(seed, self.counts[p]),
                                              values)]
        if spoil == p:
            grads[-1] = math.nan
        if view.betas[k]:
            before = ctypes.string_at(view.grads[k],
                                      self.counts[p] * self.size)
            grads = [a + b for a, b in zip(to_list(self.dtype, before), grads)]
        data = to_bytes(self.dtype, grads)
        ctypes.memmove(view.grads[k], data, len(data))

    def read(self, what):
        """Bytes of all parameters, as stored."""
        out = []
        for p in self.ids:
            name, _, trainable, _ = PARAMS[p]
            if not trainable and what != _ffi.ALQ_VALUE:
                continue
            wide = 8 if self.dtype == "f64" else \
                self.size if not trainable else 4
            data = ctypes.create_string_buffer(self.counts[p] * wide)
            self.engine.call("alq_param_read", p, what, data, 0,
                             self.counts[p], 0)
            out.append(data.raw[:self.counts[p] * wide])
        return b"".join(out)


def train(world, dtype, plan, places, layout, alone=False, tied=True):
    """Norms and a hash of all values and states after the steps."""
    count = layout.total if alone else layout.microbatches
    plan = dict(plan, microbatches=count)
    if alone:
        plan = dict(strategy=_ffi.ALQ_STRATEGY_SINGLE, microbatches=count,
                    nesting=layout.nesting.encode())
    model = Trained(world, dtype, plan, {} if alone else places, tied)
    norms = []
    for step in range(STEPS):
        for m in range(count):
            number = m if alone else layout.microbatch(world.rank, m)
            model.microbatch(step, number, m + 1 == count)
        norms.append(model.engine.step(0.01, 0.1, clip=0.5).grad_norm)
    digest = hashlib.sha256()
    for what in (_ffi.ALQ_VALUE, _ffi.ALQ_STATE_0, _ffi.ALQ_STATE_1,
                 _ffi.ALQ_GRAD):
        digest.update(model.read(what))
    model.engine.close()
    return [n.hex() for n in norms], digest.hexdigest()
