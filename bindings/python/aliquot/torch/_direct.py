"""Weight gradients written where the reduction reads them.

Autograd makes a new tensor for every gradient, which is then copied into the
engine's view.  For the modules whose backward is one matrix product or one
scatter, plain nn.Linear and nn.Embedding, it goes into the view itself: no
allocation, no copy.  The values are those of the module's own backward.

It is done for a weight that is used once in a microbatch; what is used several
times, tied, or under autocast goes the usual way.  A weight that the model also
uses outside its module's forward needs shard(lend=False), and so do second
derivatives: both are refused, not computed wrongly.
"""

from typing import Any, Optional, Tuple

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from .. import _ffi
from .._library import library
from ._parts import Param, Unit


def view_for(param: Param) -> Optional[torch.Tensor]:
    """The lent view, if this microbatch's gradient may be written into it."""
    unit = param.units[0]
    if param.several or param.ready or unit.nested or unit.loose or (
            unit.uses != 1) or (
            param.lent_pass != unit.lent_pass):
        return None
    return param.view  # type: ignore[no-any-return]


def done(param: Param) -> None:
    runtime: Any = param.full._aliquot[0]
    runtime.call(library().alq_grad_ready, param.id, None)
    runtime.pushed(param)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor,
                bias: Optional[torch.Tensor], param: Param) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.param, ctx.has_bias = param, bias is not None
        return functional.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        to_x = grad.matmul(weight) if ctx.needs_input_grad[0] else None
        flat = grad.reshape(-1, grad.shape[-1])
        to_weight = None
        if ctx.needs_input_grad[1]:
            rows, view = x.reshape(-1, x.shape[-1]), view_for(ctx.param)
            if view is None:
                to_weight = flat.t().mm(rows)
            else:
                torch.mm(flat.t(), rows, out=view)
                done(ctx.param)
        to_bias = flat.sum(0) if (
            ctx.has_bias and ctx.needs_input_grad[2]) else None
        return to_x, to_weight, to_bias, None


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, index: torch.Tensor, weight: torch.Tensor,
                param: Param) -> torch.Tensor:
        ctx.save_for_backward(index)
        ctx.param, ctx.shape = param, weight.shape
        return functional.embedding(index, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        index, = ctx.saved_tensors
        view = view_for(ctx.param)
        into = grad.new_zeros(ctx.shape) if view is None else view.zero_()
        into.index_add_(0, index.reshape(-1),
                        grad.reshape(-1, grad.shape[-1]))
        if view is not None:
            done(ctx.param)
        return None, into if view is None else None, None


def _param_of(weight: Any) -> Optional[Param]:
    """The parameter, once it is counted as used in the running pass; None where
    the usual way is right.  A checkpoint's second forward must decide as the
    first did, so how often it is used matters in the backward only."""
    owner: Optional[Tuple[Any, Param]] = getattr(weight, "_aliquot", None)
    if owner is None or not torch.is_grad_enabled() or (
            torch.is_autocast_enabled("cpu")):
        return None
    runtime, param = owner
    if not param.direct:
        return None
    unit = param.units[0]
    if param.used_pass == unit.passes:
        param.several = True
    param.used_pass = unit.passes
    return None if runtime.state != 1 else param


def _linear_forward(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    weight = self.weight
    param = _param_of(weight)
    if param is None:
        return functional.linear(x, weight, self.bias)
    return _Linear.apply(x, weight, self.bias, param)  # type: ignore


def _embedding_forward(self: nn.Embedding, index: torch.Tensor) -> torch.Tensor:
    weight = self.weight
    param = _param_of(weight)
    if param is None:
        return functional.embedding(index, weight)
    return _Embedding.apply(index, weight, param)  # type: ignore


def forward_of(module: nn.Module) -> Any:
    """What computes the module and writes its gradient in place, or None."""
    if "forward" in module.__dict__:
        return None
    if type(module) is nn.Linear:
        return _linear_forward
    if type(module) is nn.Embedding and module.padding_idx is None and (
            module.max_norm is None and not module.scale_grad_by_freq and
            not module.sparse):
        return _embedding_forward
    return None


def choose(runtime: Any) -> None:
    """After commit: the parameters whose gradients are written in place."""
    options = runtime.options
    for unit in runtime.units:
        unit.direct = [
            (index, param) for index, param in enumerate(unit.params)
            if param.trainable and len(param.sites) == 1 and
            param.sites[0][0] in options.direct and
            param.sites[0][1] == "weight" and
            param.numel >= options.lend_from and
            options.reduce_dtype in (None, param.compute)]
        for param in unit.params:
            param.direct = any(param is p for _, p in unit.direct)


def remember_views(unit: Unit, view: _ffi.alq_unit_view, engine: Any) -> None:
    """After a pass B that lent views."""
    from ._lend import tensor_at
    unit.lent_pass += 1
    for index, param in unit.direct:
        if param.view is None:
            param.view = tensor_at(view.grads[index], param.shape,
                                   param.compute, engine)
        if not view.betas[index]:
            param.lent_pass = unit.lent_pass
