"""Steps on a stream of the caller's that is a queue, all other calls on the
calling thread: what the update still reads or writes waits for it, also where
the next microbatch begins no unit.  Values have the bits of steps on the
calling thread.
"""

import ctypes
import sys
import unittest

import host
from host import _ffi

F, B = _ffi.ALQ_PASS_F, _ffi.ALQ_PASS_B
COUNT, RANKS, STEPS = 20_003, 2, 6
PLANS = {
    "fsdp": dict(strategy=_ffi.ALQ_STRATEGY_FSDP),
    "fsdp copy": dict(strategy=_ffi.ALQ_STRATEGY_FSDP,
                      gather=_ffi.ALQ_GATHER_COPY),
    "zero2": dict(strategy=_ffi.ALQ_STRATEGY_ZERO2),
    "zero1": dict(strategy=_ffi.ALQ_STRATEGY_ZERO1),
    "ddp": dict(strategy=_ffi.ALQ_STRATEGY_DDP),
}
Vector = ctypes.c_double * COUNT


class Model:
    """Two units of one parameter; the first is the root."""

    def __init__(self, world, plan, queue):
        self.rank = world.rank
        self.engine = host.Engine(world)
        self.params = [self.engine.add_param(f"w{i}", [COUNT])
                       for i in range(2)]
        self.units = [self.engine.add_unit(f"u{i}", [p], root=i == 0)
                      for i, p in enumerate(self.params)]
        self.engine.plan_and_commit(max_open=3, **plan)
        for i, p in enumerate(self.params):
            self.engine.write(p, Vector(*[1.0 + i] * COUNT), COUNT)
        self.stream = None
        if queue:
            stream = _ffi.alq_stream()
            world.library.call("alq_stream_create", world.ctx,
                               ctypes.byref(stream))
            self.stream = ctypes.byref(stream)

    def backward(self, step):
        for unit in self.units:
            self.engine.begin(unit, F)
        for i in reversed(range(2)):
            view = self.engine.begin(self.units[i], B)
            target = Vector.from_address(view.grads[0])
            add = view.betas[0]
            for k in range(COUNT):
                new = float((k * 7 + step * 3 + self.rank + i) % 13 - 5)
                target[k] = new + (target[k] if add else 0.0)
            self.engine.ready(self.params[i])

    def push(self, step):
        for i in reversed(range(2)):
            data = Vector(*[float((k + step + self.rank) % 7)
                            for k in range(COUNT)])
            self.engine.push(self.params[i], data=ctypes.addressof(data),
                             ndim=1, code=2, bits=64, lanes=1,
                             shape=(ctypes.c_int64 * 1)(COUNT))

    def step(self):
        desc = host.make(_ffi.alq_step_desc, n_groups=1,
                         lr=host.array(ctypes.c_double, [0.1]))
        report = host.make(_ffi.alq_step_report)
        self.engine.call("alq_step", ctypes.byref(desc), self.stream,
                         ctypes.byref(report))
        return report.grad_norm

    def values(self):
        found = []
        for p in self.params:
            data = Vector()
            self.engine.read(p, data, COUNT)
            found.append(bytes(data))
        return found


class Streams(unittest.TestCase):
    def train(self, plan, queue, microbatches):
        def rank_main(world):
            model = Model(world, dict(plan, microbatches=microbatches), queue)
            norms = []
            for step in range(STEPS):
                for m in range(microbatches):
                    model.engine.microbatch(_ffi.ALQ_TRAIN,
                                            last=m + 1 == microbatches)
                    # Then gradients that never come, then pushed ones.
                    if (step + m) % 3 == 0:
                        model.backward(step)
                    elif (step + m) % 3 == 2:
                        model.push(step)
                    model.engine.microbatch_end()
                norms.append(model.step())
            values = model.values()
            model.engine.close()
            return norms, values

        return host.run_ranks(LIBRARY, RANKS, rank_main)

    def test_updates_are_waited_for(self):
        for name, plan in PLANS.items():
            for microbatches in (1, 2):
                with self.subTest(plan=name, microbatches=microbatches):
                    self.assertTrue(
                        self.train(plan, True, microbatches) ==
                        self.train(plan, False, microbatches))


if __name__ == "__main__":
    LIBRARY = host.Library(sys.argv.pop(1))
    unittest.main()
