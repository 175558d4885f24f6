"""The engine under an unmodified nn.Module, by hooks alone.

Parameter objects over the lent memory take the place of the module's own at a
unit's first begin, once and for all: addresses do not change.  A unit's passes
are bracketed by forward hooks and begun in backward by full backward pre-hooks;
gradients are pushed when autograd has accumulated them.  Units do not nest,
except in the root, whose memory is never shared.
"""

import ctypes

import host
import torch
from host import _ffi

DTYPES = {torch.float64: (_ffi.ALQ_F64, 2), torch.float32: (_ffi.ALQ_F32, 2),
          torch.bfloat16: (_ffi.ALQ_BF16, 4)}  # and DLPack's type codes
MARKS = {_ffi.ALQ_PASS_F: "F", _ffi.ALQ_PASS_F_NOGRAD: "N",
         _ffi.ALQ_PASS_R: "R", _ffi.ALQ_PASS_B: "B"}


def lent(address, like):
    """A parameter in the engine's memory, shaped as `like`."""
    size = like.numel() * like.element_size()
    memory = (ctypes.c_char * size).from_address(address)
    data = torch.frombuffer(memory, dtype=like.dtype) if size else like.detach()
    return torch.nn.Parameter(data.view(like.shape), like.requires_grad)


class Param:
    def __init__(self, engine, name, value):
        self.value, self.swapped, self.sites, self.units = value, False, [], []
        self.id = engine.add_param(name, value.shape, value.requires_grad,
                                   DTYPES[value.dtype][0])


class Unit:
    def __init__(self, module, params, root):
        self.module, self.params = module, params
        frozen = any(not p.value.requires_grad for p in params)
        # Its parameters may be read until the gradient of its input is there.
        self.ends_backward = frozen and not root
        self.reset()

    def reset(self):
        self.open, self.done = [], 0  # passes of this microbatch's backward
        self.left = sum(p.value.requires_grad for p in self.params)


class Adapter:
    """units: [(name, module, is_root), ...] in forward order."""

    def __init__(self, world, units, **plan):
        self.engine = host.Engine(world, name=b"torch")
        self.log, self.units = [], []
        taken, params = {module for _, module, _ in units}, {}
        for name, module, root in units:
            own = self._collect(name, module, taken, params)
            unit = Unit(module, own, root)
            unit.index = self.engine.add_unit(name, [p.id for p in own], root)
            for param in own:
                param.units.append(unit)
            self.units.append(unit)
        self.report = self.engine.plan_and_commit(**plan)
        for param in params.values():
            value = param.value.detach().contiguous()
            self.engine.write(param.id, value.data_ptr(), value.numel())
        for unit in self.units:
            self._hook(unit)

    def _collect(self, name, module, taken, params):
        """The unit's own parameters; one that two modules hold is one."""
        own, parts = [], [module]
        for part in parts:
            parts += [c for c in part.children() if c not in taken]
            for key, value in part.named_parameters(recurse=False):
                if value not in params:
                    params[value] = Param(
                        self.engine, "%s.%d.%s" % (name, len(own), key), value)
                params[value].sites.append((part, key))
                if params[value] not in own:
                    own.append(params[value])
        return own

    def _hook(self, unit):
        unit.module.register_forward_pre_hook(
            lambda *_: self._begin(unit, self._pass()))
        unit.module.register_forward_hook(
            lambda *_: self._end(unit, self._pass()))
        unit.module.register_full_backward_pre_hook(
            lambda *_: self._begin(unit, _ffi.ALQ_PASS_B))
        if unit.ends_backward:
            unit.module.register_full_backward_hook(
                lambda *_: self._try_end(unit, 1))

    def _pass(self):
        in_backward = torch._C._current_graph_task_id() != -1
        return _ffi.ALQ_PASS_R if in_backward else self.forward

    def _begin(self, unit, kind):
        view = self.engine.begin(unit.index, kind, push=True)
        self.log.append(MARKS[kind] + str(unit.index))
        if kind in (_ffi.ALQ_PASS_R, _ffi.ALQ_PASS_B):
            unit.open.append(kind)
        for address, param in zip(view.params[:view.n], unit.params):
            if not param.swapped:
                self._swap(param, address)

    def _swap(self, param, address):
        param.value, param.swapped = lent(address, param.value), True
        for module, key in param.sites:
            module._parameters[key] = param.value
        if param.value.requires_grad:
            param.value.register_post_accumulate_grad_hook(
                lambda _: self._push(param))

    def _end(self, unit, kind, mark=")"):
        self.engine.end(unit.index, kind)
        self.log.append(mark + str(unit.index))
        if kind in unit.open:
            unit.open.remove(kind)

    def _push(self, param):
        grad, param.value.grad = param.value.grad.contiguous(), None
        self.engine.push(
            param.id, data=grad.data_ptr(), lanes=1,
            code=DTYPES[grad.dtype][1], bits=8 * grad.element_size(),
            ndim=grad.dim(), shape=host.array(ctypes.c_int64, grad.shape))
        for unit in param.units:
            self.log.append("g" + str(unit.index))
            unit.left -= 1
            self._try_end(unit)

    def _try_end(self, unit, input_done=0):
        unit.done += input_done
        if (unit.ends_backward and unit.left == 0 and
                unit.done == unit.open.count(_ffi.ALQ_PASS_B)):
            while unit.open:  # a recompute that stopped early is open as well
                self._end(unit, unit.open[-1], "]")
            unit.done = 0

    def begin(self, mode, weight=1.0, last=True):
        """Begins a microbatch; the loss is to be multiplied by the result."""
        self.forward = (_ffi.ALQ_PASS_F if mode == _ffi.ALQ_TRAIN
                        else _ffi.ALQ_PASS_F_NOGRAD)
        for unit in self.units:
            unit.reset()
        self.log.clear()
        return self.engine.microbatch(mode, weight, last)
