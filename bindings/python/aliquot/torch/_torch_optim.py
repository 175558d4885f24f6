"""torch's own optimizers on the shards.

With shard(optimizer="torch") the engine has no optimizer: model.parameters()
are the parts that this rank owns, p.grad their mean gradients, and any
optimizer that works element by element updates them.  Hooks that torch offers
on every optimizer's step tell when that is.
"""

from typing import Any, Set

import torch
from torch.optim.optimizer import (register_optimizer_step_post_hook,
                                   register_optimizer_step_pre_hook)

from .._error import failed_precondition
from ._runtime import Runtime

_installed = False
_WRONG = (
    "torch's %s steps parameters of a sharded model, whose gradients and "
    "optimizer states are in the engine: make aliquot.torch.AdamW or SGD from "
    "model.parameters() after shard(), or shard with optimizer=\"torch\" and "
    "make torch's own after it")


def install() -> None:
    global _installed
    if not _installed:
        _installed = True
        register_optimizer_step_pre_hook(_before)
        register_optimizer_step_post_hook(_after)


def _runtimes(optimizer: Any) -> Set[Runtime]:
    """Whose shards the optimizer updates; none if the engine does that."""
    found: Set[Runtime] = set()
    if isinstance(getattr(optimizer, "runtime", None), Runtime):
        return found
    for group in optimizer.param_groups:
        for param in group["params"]:
            if not hasattr(param, "_aliquot"):
                continue
            owner = param._aliquot  # None: the model was sharded later
            if owner is None or owner[0].options.optimizer != "torch":
                raise failed_precondition(_WRONG % (type(optimizer).__name__,))
            found.add(owner[0])
    return found


def _before(optimizer: Any, args: Any, kwargs: Any) -> None:
    for runtime in _runtimes(optimizer):
        if runtime.finish_step():
            means(runtime)


def means(runtime: Runtime) -> None:
    """Turns the weighted sums into mean gradients, in place, and shows them."""
    weight = runtime.grads_now().weight
    dropped = [p for p in runtime.params
               if p.grad is not None and (
                   p.rest.grad is None or not p.wanted)]
    report = runtime.step_torch()
    if report is None:
        return
    scale = 1 / weight
    if runtime.asked_clip > 0:
        scale *= min(1.0, runtime.asked_clip / (report.grad_norm + 1e-6))
    for param in runtime.params:
        if param.grad is None or param in dropped:
            continue
        param.grad_plain.mul_(scale)
        plain = param.grad_plain.view(param.rest.shape)
        param.rest.grad = plain if not report.skipped else torch.zeros_like(
            plain)
    runtime.grads_shown = True


def _after(optimizer: Any, args: Any, kwargs: Any) -> None:
    for runtime in _runtimes(optimizer):
        for param in runtime.params:
            if param.trainable and param.rest.dtype != param.compute:
                # Rounds the master copy into the compute copy.
                shard = runtime.engine.shard_view(param.id)
                runtime.engine.param_write(
                    param.id, param.rest.detach().clone(), shard.begin)
        runtime.engine.param_touch()
        runtime.hide_grads()
