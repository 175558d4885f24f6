"""Where the model tells the runtime what it does: around the forward of its
modules, and by hooks on their outputs and on parameters.

Any module that holds parameters may be the way into its unit, so each has a
forward of ours that looks whether the unit is being called already.  It is a
closure, so that a deep copy of the model does not copy the runtime, and leaves
copies alone.
"""

import ctypes
import types
import weakref
from typing import Any, List, Optional, Tuple

import torch
from torch import nn

from .. import _dtype, _ffi
from .._error import failed_precondition
from .._library import library
from . import _direct
from ._parts import Param, Unit, map_tensors, tensors_of
from ._runtime import Runtime, _task
from ._states import IDLE


class _Backward:
    """Begins a unit's pass B, once per backward, when the first of the outputs
    of one call has its gradient."""

    __slots__ = ("runtime", "unit", "serial")

    def __init__(self, runtime: Runtime, unit: Unit) -> None:
        self.runtime, self.unit, self.serial = runtime, unit, -1

    def __call__(self, _: Any) -> None:
        if self.serial != self.runtime.serial:
            self.serial = self.runtime.serial
            self.runtime.begin_backward(self.unit)


class _InputDone(torch.autograd.Function):
    """Identity on the inputs of one call; its backward runs when all their
    gradients are there."""

    @staticmethod
    def forward(ctx: Any, runtime: Runtime, unit: Unit,
                *inputs: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        ctx.told = (runtime, unit)
        return inputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        runtime, unit = ctx.told
        runtime.inputs_done(unit)
        return (None, None) + grads


def _watch_inputs(runtime: Runtime, unit: Unit, args: Any,
                  kwargs: Any) -> Optional[Tuple[Any, Any]]:
    inputs: List[torch.Tensor] = []

    def collect(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.requires_grad:
            inputs.append(tensor)
        return tensor

    map_tensors(collect, (args, kwargs))
    if not inputs:
        unit.unwatched += 1
        return None
    watched = iter(_InputDone.apply(runtime, unit, *inputs))
    return map_tensors(  # type: ignore[no-any-return]
        lambda t: next(watched) if t.requires_grad else t, (args, kwargs))


def _cast(dtype: torch.dtype, args: Any, kwargs: Any) -> Tuple[Any, Any]:
    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return map_tensors(cast, (args, kwargs))  # type: ignore[no-any-return]


class _Bracket:
    """What is done before and after a call of one module of a unit."""

    def __init__(self, runtime: Runtime, unit: Unit) -> None:
        self.runtime, self.unit = runtime, unit
        self.watches = not unit.root  # the root is open until the end anyway

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        runtime, unit = self.runtime, self.unit
        runtime.enter(unit, module)
        changed = None
        compute = runtime.options.dtype
        if compute is not None:
            args, kwargs = changed = _cast(compute, args, kwargs)
        if self.watches and unit.kind and torch.is_grad_enabled() and (
                not runtime.is_part(unit)):
            changed = _watch_inputs(runtime, unit, args, kwargs) or changed
        return changed

    def after(self, output: Any) -> None:
        runtime, unit = self.runtime, self.unit
        kind, part = unit.kind, runtime.is_part(unit)
        runtime.leave(unit)
        if kind in (_ffi.ALQ_PASS_F, _ffi.ALQ_PASS_R) and not part:
            told: Optional[_Backward] = None
            for tensor in tensors_of(output):
                if tensor.requires_grad:
                    told = told or _Backward(runtime, unit)
                    tensor.register_hook(told)


def _wrap_module(runtime: Runtime, unit: Unit, module: nn.Module) -> None:
    """A forward that looks whether the unit is being called.  Hooks would cost
    many times as much in every module of the model, and would not see a
    KeyboardInterrupt."""
    bracket, mine = _Bracket(runtime, unit), weakref.ref(module)
    plain = None
    if runtime.options.lend:
        plain = _direct.forward_of(module)
        if plain is not None:
            runtime.options.direct.add(module)
    plain = plain or replaced_forward(module)

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if unit.entry is not None or self is not mine():
            if unit.traced and not torch.is_grad_enabled():
                unit.nested = True
            return plain(self, *args, **kwargs)
        args, kwargs = bracket.before(self, args, kwargs) or (args, kwargs)
        output = None
        try:
            output = plain(self, *args, **kwargs)
            return output
        finally:
            bracket.after(output)

    set_forward(runtime, module, forward)


def replaced_forward(module: nn.Module) -> Any:
    """The module's forward as a function of the module."""
    own = module.__dict__.get("forward")
    if own is None:
        return type(module).forward
    return getattr(own, "__func__", lambda self, *a, **k: own(*a, **k))


def set_forward(runtime: Runtime, module: nn.Module, forward: Any) -> None:
    """As a bound method: a deep copy binds its own."""
    runtime.options.forwards.setdefault(module, module.__dict__.get("forward"))
    object.__setattr__(module, "forward", types.MethodType(forward, module))


def guard_types(runtime: Runtime, module: nn.Module) -> None:
    """model.to() and its like put other memory under the parameters, which the
    engine would not know.  What changes neither type nor device is harmless;
    buffers move as ever."""
    mine = weakref.ref(module)

    def _apply(self: nn.Module, fn: Any, recurse: bool = True) -> nn.Module:
        if self is not mine():
            return type(self)._apply(self, fn, recurse)
        for key, value in dict.items(self._parameters):
            if value is None:
                continue
            probe = torch.empty(0, dtype=value.dtype, device=value.device)
            with torch.no_grad():
                changed = fn(probe)
            if changed.dtype != probe.dtype or changed.device != probe.device:
                raise failed_precondition(
                    "parameter %s is sharded and stays %s on %s; change the "
                    "model to %s on %s before aliquot.torch.shard" % (
                        key, probe.dtype, probe.device, changed.dtype,
                        changed.device))
        own, self._parameters = self._parameters, {}
        try:
            return type(self)._apply(self, fn, recurse)
        finally:
            self._parameters = own

    object.__setattr__(module, "_apply", types.MethodType(_apply, module))


def hook_units(runtime: Runtime) -> None:
    for unit in runtime.units:
        for _, module in unit.modules:
            if module._parameters:
                guard_types(runtime, module)
            if module is unit.module or any(
                    True for _ in module.parameters()):
                _wrap_module(runtime, unit, module)


def hook_grad(runtime: Runtime, param: Param) -> None:
    """Pushes the gradient of param.full as soon as it is final.  A hook holds
    nothing alive: the garbage collector does not see through a tensor's
    hooks."""
    code, bits = _dtype.DLPACK_CODE[_dtype.of(param.compute)]
    raw = _ffi.alq_tensor(
        device_type=_ffi.ALQ_DEVICE_CPU, ndim=len(param.shape), code=code,
        bits=bits, lanes=1,
        shape=(ctypes.c_int64 * max(len(param.shape), 1))(*param.shape))
    ref, function = ctypes.byref(raw), library().alq_grad_push
    weak_runtime, weak_param = weakref.ref(runtime), weakref.ref(param)

    def added(tensor: torch.Tensor) -> None:
        runtime, param = weak_runtime(), weak_param()
        if runtime is None or param is None:
            return
        if _task() != -1:
            runtime.backward_event()
            if runtime.is_early(param):
                if param not in runtime.late:
                    runtime.late.append(param)
                return
        push(tensor)

    def push(tensor: torch.Tensor) -> None:
        grad, runtime, param = tensor.grad, weak_runtime(), weak_param()
        if grad is None or runtime is None or param is None:
            return
        tensor.grad = None
        if grad.is_sparse:
            grad = grad.to_dense()
        grad = grad.contiguous()
        raw.data = grad.data_ptr()
        runtime.call(function, param.id, ref, None)
        runtime.pushed(param)

    param.push = push
    param.full.register_post_accumulate_grad_hook(added)


class Access(dict):
    """A module's _parameters.  A parameter that is read outside all calls of
    its unit may be used there; where the model holds shards between passes and
    a microbatch runs, it opens the unit."""

    unit: Unit
    runtime: Runtime

    def __getitem__(self, key: str) -> Any:
        unit = self.unit
        value = dict.__getitem__(self, key)
        if unit.shown == 0 and hasattr(value, "_aliquot"):
            unit.loose = True
            if self.runtime.state != IDLE and unit.swaps:
                self.runtime.show_by_access(unit)
                return dict.__getitem__(self, key)
        return value

    def __reduce__(self) -> Any:
        return (dict, (dict(self),))


def watch_access(runtime: Runtime, unit: Unit) -> None:
    for _, module in unit.modules:
        if module._parameters and type(module._parameters) is not Access:
            watched = Access(module._parameters)
            watched.unit, watched.runtime = unit, runtime
            module._parameters = watched
