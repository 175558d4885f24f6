"""Gradient clipping inside the step."""

from typing import Any

import torch

from .._arguments import items
from ._optim import owner_of


def clip_grad_norm_(target: Any, max_norm: float,
                    norm_type: float = 2.0) -> torch.Tensor:
    """Has the next optimizer.step() clip the global norm of the mean gradient.

    target: the sharded model, its parameters, or its optimizer.  The norm is a
    part of the step, so the tensor that is returned is NaN until then and holds
    the norm, before clipping, afterwards.  torch.nn.utils.clip_grad_norm_ works
    too, says the norm at once, and costs one more pass over the gradients.
    """
    if norm_type != 2:
        raise ValueError("the engine clips the 2-norm, not the %s-norm; use "
                         "torch.nn.utils.clip_grad_norm_" % norm_type)
    from ._api import runtime_of
    if isinstance(target, torch.Tensor):
        runtime = owner_of(target)[0]
    elif isinstance(target, (torch.nn.Module, torch.optim.Optimizer)):
        runtime = runtime_of(target)
    else:
        params = items("target", target, "parameters",
                       "clip_grad_norm_(model.parameters(), 1.0)")
        if not params:
            raise ValueError("there are no parameters to clip: 0 were given (an "
                             "iterator that was used before has none left); "
                             "give the model or model.parameters()")
        runtime = owner_of(params[0])[0]
    runtime.clip = float(max_norm)
    if runtime.norm_out is None:
        runtime.norm_out = torch.full((), float("nan"),
                                      dtype=torch.float64)
    return runtime.norm_out  # type: ignore[no-any-return]
