"""The engine under a NumPy model: parameters and gradients are views.

A host that runs its own backward pass needs no more than this: the arrays over
the lent memory are made once, at a unit's first begin, and stay valid, since a
parameter has the same address every time.
"""

import ctypes

import numpy as np

import host
from host import _ffi


def lent(address, shape):
    count = int(np.prod(shape))
    memory = (ctypes.c_double * count).from_address(address)
    return np.frombuffer(memory, np.float64, count).reshape(shape)


class NumpyHost:
    """Lends a model its parameters.  units: [(name, [(param, shape), ...])];
    the first unit is the root."""

    def __init__(self, world, units, arrays, **plan):
        self.units = units
        self.engine = host.Engine(world, name=b"numpy")
        self.ids = []
        for u, (name, params) in enumerate(units):
            ids = [self.engine.add_param(name + "." + p, shape)
                   for p, shape in params]
            self.engine.add_unit(name, ids, root=u == 0)
            self.ids.append(ids)
        self.report = self.engine.plan_and_commit(**plan)
        for ids, values in zip(self.ids, arrays):
            for param, value in zip(ids, values):
                self.engine.write(param, value.ctypes.data, value.size)
        self.params = [None] * len(units)
        self.grads = [None] * len(units)

    def _views(self, unit, pointers):
        return [lent(pointers[i], shape)
                for i, (_, shape) in enumerate(self.units[unit][1])]

    def begin(self, unit, train):
        view = self.engine.begin(
            unit, _ffi.ALQ_PASS_F if train else _ffi.ALQ_PASS_F_NOGRAD)
        if self.params[unit] is None:
            self.params[unit] = self._views(unit, view.params)
        return self.params[unit]

    def end(self, unit, train):
        self.engine.end(
            unit, _ffi.ALQ_PASS_F if train else _ffi.ALQ_PASS_F_NOGRAD)

    def begin_backward(self, unit):
        view = self.engine.begin(unit, _ffi.ALQ_PASS_B)
        if self.grads[unit] is None:
            self.grads[unit] = self._views(unit, view.grads)
        n = len(self.units[unit][1])
        return self.params[unit], self.grads[unit], view.betas[:n]

    def end_backward(self, unit):
        for param in self.ids[unit]:
            self.engine.ready(param)
        self.engine.end(unit, _ffi.ALQ_PASS_B)

    def read(self, unit, index):
        out = np.empty(self.units[unit][1][index][1])
        self.engine.read(self.ids[unit][index], out.ctypes.data, out.size)
        return out
