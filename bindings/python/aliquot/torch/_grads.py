"""Gradients as the caller sees them between backward and step.

They are reduced and live in the engine: p.grad is the own part, and knows that
a norm is one over all ranks.  So torch.nn.utils.clip_grad_norm_ works as it is:
the norms that it asks for are of whole parameters, and what it multiplies is
what the step reads.  Looking at gradients waits for the reductions; who only
clips is faster with aliquot.torch.clip_grad_norm_.

The engine keeps weighted sums and divides by the sum of the weights in the
step.  Norms and factors need no division; whatever else is done with a gradient
first turns all of them into means, in place, so that views and whatever has
their address read and write what the step takes.  The step turns them back.
"""

import math
import weakref
from typing import Any, Dict, Iterable, List

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
_UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"
# Results that are the same elements: still a gradient, with its norm.
_SAME = {"data", "detach", "view", "view_as", "reshape", "reshape_as",
         "flatten", "ravel", "contiguous", "squeeze", "unsqueeze"}
# The caller may write through the result, unseen.
_ALIASES = _SAME | {
    "T", "H", "mT", "mH", "real", "__getitem__", "narrow", "select", "split",
    "chunk", "unbind", "t", "transpose", "permute", "unflatten", "as_strided",
    "numpy", "__array__", "__dlpack__", "data_ptr", "untyped_storage",
    "storage", "to", "type", "float", "double", "half", "bfloat16", "cpu"}


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
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__"):
            name = func.__self__.__name__
            if name not in _ALIASES:  # shape, dtype, requires_grad ...
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **kwargs)
            if func.__name__ == "__set__":  # the memory stays the engine's
                func, args = torch.Tensor.copy_, args[:2]
        if func in _NORMS and _is_whole(args, kwargs):
            return args[0].runtime.grads_now().norm(
                args[0].param, _order(args, kwargs))
        if func is _FOREACH_NORM:
            order = kwargs.get("ord", args[1] if len(args) > 1 else 2)
            return [torch.linalg.vector_norm(g, order) for g in args[0]]
        grads = list(_grads_in((args, kwargs)))
        reduced = {id(g.runtime): g.runtime.grads_now() for g in grads}
        scaled = func in _SCALING and not any(
            True for _ in _grads_in((args[1:], kwargs)))
        for now in reduced.values():
            now.used(name, scaled)
        result = _call(func, name, args, kwargs)
        if name == _UNSCALE:  # what one rank finds, all have to know
            for now in reduced.values():
                now.group.all_reduce(args[1], op="max")
        return result


def _call(func: Any, name: str, args: Any, kwargs: Any) -> Any:
    """func on ordinary tensors over the same memory."""
    with torch._C.DisableTorchFunctionSubclass():
        plain: Dict[int, Any] = {}  # of the ordinary tensor: it, the gradient
        result = func(*_plain(args, plain), **_plain(kwargs, plain))
        found = plain.get(id(result))
        if found is not None:  # in place
            return found[1]
        if name in _SAME and isinstance(args[0], Grad) and (
                result.numel() == args[0].numel() and
                result.dtype == args[0].dtype):
            return wrap(result, args[0].weak_runtime, args[0].weak_param)
        return result


def wrap(plain: torch.Tensor, runtime: Any, param: Any) -> Grad:
    grad = torch.Tensor._make_subclass(Grad, plain)
    grad.weak_runtime, grad.weak_param = runtime, param
    return grad  # type: ignore[no-any-return]


def _grads_in(value: Any) -> Iterable[Grad]:
    if isinstance(value, Grad):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _grads_in(part)
    elif isinstance(value, dict):
        yield from _grads_in(tuple(value.values()))


def _plain(value: Any, plain: Dict[int, Any]) -> Any:
    if isinstance(value, Grad):
        tensor = value.as_subclass(torch.Tensor)
        plain[id(tensor)] = tensor, value
        return tensor
    if isinstance(value, dict):
        return {k: _plain(part, plain) for k, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_plain(part, plain) for part in value)
    return value


def _is_whole(args: Any, kwargs: Any) -> bool:
    return (isinstance(args[0], Grad) and kwargs.get("dim") is None and
            len(args) <= 2)


def _order(args: Any, kwargs: Any) -> float:
    order = args[1] if len(args) > 1 else kwargs.get("ord", kwargs.get("p", 2))
    order = 2.0 if order in (None, "fro") else float(order)
    if not order > 0:
        raise ValueError("gradients that are distributed have norms of orders "
                         "above 0, not %g" % order)
    return order


class Reduced:
    """The gradients of one step after all reductions."""

    def __init__(self, runtime: Any) -> None:
        self.runtime = runtime
        self.group = runtime.mesh.group(DATA_AXES)
        first = next(p for p in runtime.params if p.trainable)
        # Reading nothing waits for the reductions, and says that gradients
        # may be changed from now on.
        runtime.engine.param_read(first.id, numpy.empty(0), what="grad")
        total = torch.tensor([runtime.weight], dtype=torch.float64)
        self.weight = self.group.all_reduce(total).item()
        self.norms: Dict[float, List[float]] = {}
        self.are_means = self.weight == 1
        self.aliased = False  # somebody may write unseen

    def used(self, name: str, scaled: bool) -> None:
        """Before a function is called with gradients."""
        if not scaled:
            self.scale_to_means()
            self.aliased |= name in _ALIASES
        if scaled or name.endswith("_") or name in ("copy_", "data"):
            self.norms.clear()

    def scale_to_means(self) -> None:
        if not self.are_means:
            self._scale(1 / self.weight)
            self.are_means = True

    def scale_to_sums(self) -> None:
        """For the engine."""
        if self.are_means and self.weight != 1:
            self._scale(self.weight)
            self.are_means = False

    def _scale(self, factor: float) -> None:
        for param in self.runtime.params:
            if param.trainable:
                param.grad_plain.mul_(factor)

    def norm(self, param: Param, order: float) -> torch.Tensor:
        """Of the whole mean gradient of a parameter.  Collective: for each
        parameter once gradients are aliased, for all at once before."""
        if self.aliased:
            value = self._norms([param], order)[0]
        else:
            if order not in self.norms:
                self.norms[order] = self._norms(self.runtime.params, order)
            value = self.norms[order][param.id]
        if not self.are_means:
            value /= self.weight
        dtype = param.grad_plain.dtype
        return torch.tensor(value, dtype=dtype if dtype.itemsize > 2 else
                            torch.float32)

    def _norms(self, params: List[Param], order: float) -> List[float]:
        mine = torch.zeros(len(params), dtype=torch.float64)
        for index, param in enumerate(params):
            if param.trainable and param.grad_plain.numel():
                part = torch.linalg.vector_norm(
                    param.grad_plain, order, dtype=torch.float64).item()
                mine[index] = part if math.isinf(order) else (
                    part ** order / param.copies)
        if math.isinf(order):
            self.group.all_reduce(mine, op="max")
            return mine.tolist()
        self.group.all_reduce(mine)
        return [value ** (1 / order) for value in mine.tolist()]


def make(runtime: Any) -> None:
    """After commit: the tensors that p.grad will be."""
    for param in runtime.params:
        if not param.trainable:
            continue
        plain = shard_tensor(runtime.engine, param.id, "grad")
        param.grad_plain = plain
        if plain.numel() != param.rest.numel():
            continue
        if plain.dtype != param.rest.dtype:
            if not hasattr(param.rest, "grad_dtype"):  # before torch 2.9
                continue
            param.rest.grad_dtype = plain.dtype
        param.grad = wrap(plain.view(param.rest.shape), weakref.ref(runtime),
                          weakref.ref(param))


def show(runtime: Any) -> None:
    for param in runtime.params:
        if param.grad is not None:
            param.rest.grad = param.grad


def hide(runtime: Any) -> None:
    for param in runtime.params:
        if param.grad is not None:
            param.rest.grad = None


def settle(runtime: Any) -> bool:
    """Before the step: the engine gets what the caller left in p.grad.  False
    if that is nothing at all."""
    shown = [p for p in runtime.params if p.grad is not None]
    other = [p for p in shown if p.rest.grad is not p.grad]
    gone = [p for p in other if p.rest.grad is None]
    if shown and len(gone) == len(shown):
        return False
    if gone and runtime.options.optimizer != "torch":
        raise failed_precondition(
            "the gradient of %s was set to None, but the engine updates all "
            "parameters that it was planned for: zero it, give the parameter "
            "a group of its own whose lr is 0, or shard with "
            "optimizer=\"torch\"" % gone[0].name)
    for param in other:
        value = param.rest.grad
        if value is None:
            continue
        if value.shape != param.grad.shape:
            raise failed_precondition(
                "the gradient of %s was set to a tensor of shape %s; the part "
                "that this rank owns has the shape %s" % (
                    param.name, tuple(value.shape), tuple(param.grad.shape)))
        param.grad.copy_(value)
    if runtime.grads is not None:
        runtime.grads.scale_to_sums()
    return True
