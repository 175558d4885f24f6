"""Gradients as the caller sees them between backward and step.

They are reduced and live in the engine: p.grad is the own part, and knows that
a norm is one over all ranks.  So torch.nn.utils.clip_grad_norm_ works as it is:
the norms that it asks for are of whole parameters, and what it multiplies is
what the step reads.  Looking at gradients waits for the reductions; who only
clips is faster with aliquot.torch.clip_grad_norm_.

The engine keeps weighted sums and divides by the sum of the weights in the
step; what is read here is divided already.
"""

import math
import weakref
from typing import Any, Dict, List

import numpy
import torch

from .._error import failed_precondition
from ._lend import shard_tensor
from ._parts import Param

_NORMS = {torch.linalg.vector_norm, torch.norm, torch.Tensor.norm,
          torch.linalg.norm}
_FOREACH_NORM = torch._foreach_norm  # type: ignore[attr-defined]
DATA_AXES = "dp_replicate,dp_shard"
_SCALING = {torch.Tensor.mul_, torch.Tensor.div_, torch.Tensor.__imul__,
            torch.Tensor.__itruediv__, torch._foreach_mul_,
            torch._foreach_div_}


class Grad(torch.Tensor):
    """Own part of a reduced gradient."""

    weak_runtime: Any  # weak: a collector does not see through p.grad
    weak_param: Any

    @property
    def runtime(self) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            runtime = self.weak_runtime()
        if runtime is None:
            raise failed_precondition("the sharded model is gone")
        return runtime

    @property
    def param(self) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return self.weak_param()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in ("__get__", "__set__"):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func in _NORMS and _is_whole(args, kwargs):
            return args[0].runtime.grads_now().norm(
                args[0].param, _order(func, args, kwargs))
        if func is _FOREACH_NORM:
            order = kwargs.get("ord", args[1] if len(args) > 1 else 2)
            return [torch.linalg.vector_norm(g, order) for g in args[0]]
        first = _first(args)
        if first is not None:
            now = first.runtime.grads_now()
            if func not in _SCALING:
                return now.outside(func, args, kwargs)
            now.norms.clear()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


def _first(args: Any) -> Any:
    for value in args:
        if isinstance(value, Grad):
            return value
        if isinstance(value, (tuple, list)):
            found = _first(value)
            if found is not None:
                return found
    return None


def _is_whole(args: Any, kwargs: Any) -> bool:
    return (isinstance(args[0], Grad) and kwargs.get("dim") is None and
            len(args) <= 2)


def _order(func: Any, args: Any, kwargs: Any) -> float:
    order = args[1] if len(args) > 1 else kwargs.get("ord", kwargs.get("p", 2))
    return 2.0 if order in (None, "fro") else float(order)


class Reduced:
    """The gradients of one step after all reductions."""

    def __init__(self, runtime: Any) -> None:
        self.runtime = runtime
        self.group = runtime.mesh.group(DATA_AXES)
        first = next(p for p in runtime.params if p.trainable)
        # Reading nothing waits for the reductions.
        runtime.engine.param_read(first.id, numpy.empty(0), what="grad")
        total = torch.tensor([runtime.weight], dtype=torch.float64)
        self.weight = self.group.all_reduce(total).item()
        self.norms: Dict[float, List[float]] = {}

    def norm(self, param: Param, order: float) -> torch.Tensor:
        """Of the whole mean gradient of a parameter.  Collective when it is the
        first of its order."""
        if order not in self.norms:
            self.norms[order] = self._all(order)
        value = self.norms[order][param.id] / self.weight
        return torch.tensor(value, dtype=param.grad_plain.dtype)

    def _all(self, order: float) -> List[float]:
        runtime = self.runtime
        mine = torch.zeros(len(runtime.params), dtype=torch.float64)
        for param in runtime.params:
            if param.trainable and param.grad_plain.numel():
                part = torch.linalg.vector_norm(
                    param.grad_plain, order, dtype=torch.float64).item()
                mine[param.id] = part if math.isinf(order) else (
                    part ** order / param.copies)
        if math.isinf(order):
            self.group.all_reduce(mine, op="max")
            return mine.tolist()
        self.group.all_reduce(mine)
        return [value ** (1 / order) for value in mine.tolist()]

    def outside(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs func on mean gradients instead of weighted sums."""
        name = getattr(func, "__name__", "")
        target = args[0] if name.endswith("_") and isinstance(
            args[0], Grad) else None
        if target is not None:
            target.param.grad_plain.div_(self.weight)
            args = (target.param.grad_plain,) + tuple(args[1:])
            self.norms.clear()
        args, kwargs = _means(args, self.weight), _means(kwargs, self.weight)
        result = func(*args, **kwargs)
        if target is None:
            return result
        target.param.grad_plain.mul_(self.weight)
        return target


def _means(value: Any, weight: float) -> Any:
    if isinstance(value, Grad):
        return (value.param.grad_plain / weight).view(value.shape)
    if isinstance(value, dict):
        return {k: _means(part, weight) for k, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_means(part, weight) for part in value)
    return value


def make(runtime: Any) -> None:
    """After commit: the tensors that p.grad will be."""
    for param in runtime.params:
        if not param.trainable:
            continue
        plain = shard_tensor(runtime.engine, param.id, "grad")
        param.grad_plain = plain
        if plain.numel() == param.rest.numel() and (
                plain.dtype == param.rest.dtype):
            grad = torch.Tensor._make_subclass(Grad, plain.view(
                param.rest.shape))
            grad.weak_runtime = weakref.ref(runtime)
            grad.weak_param = weakref.ref(param)
            param.grad = grad


def show(runtime: Any) -> None:
    for param in runtime.params:
        if param.grad is not None:
            param.rest.grad = param.grad


def hide(runtime: Any) -> None:
    for param in runtime.params:
        if param.grad is not None:
            param.rest.grad = None
