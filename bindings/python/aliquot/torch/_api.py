"""shard() and what is said about a sharded model."""

import contextlib
import types
import weakref
from typing import Any, Dict, Iterable, Iterator, Optional, Set

import torch
from torch import nn

from .. import _ffi
from . import _state, _state_dict, _torch_optim
from ._hooks import hook_units
from ._parts import Choice, split
from ._runtime import Runtime
from ._states import EVAL, HELD, IDLE
from ._world import data_ranks, resolve_mesh


class Options:
    """How a model is sharded."""

    def __init__(self, **values: Any) -> None:
        self.handles: Any = []
        # Modules whose forward was replaced, and what they had of their own.
        self.forwards: Dict[nn.Module, Any] = {}
        self.direct: Set[nn.Module] = set()  # may write gradients in place
        self.__dict__.update(values)


STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp", "single")


PLAN_OPTIONS = ("prefetch", "max_open", "reshard", "defer", "gather",
                "progress", "cap_bytes", "nesting")


def shard(model: nn.Module, strategy: str = "fsdp", mesh: Any = None,
          units: Iterable[Choice] = (), *, microbatches: int = 1,
          optimizer: Optional[str] = None, dtype: Optional[torch.dtype] = None,
          reduce_dtype: Optional[torch.dtype] = None, init: Any = None,
          sync: bool = True, hold: bool = False, lend: bool = True,
          lend_from: int = 1 << 14, name: str = "model",
          poison: bool = False, hints: Any = None, **plan: Any) -> nn.Module:
    """Shards a model over the data ranks and returns it: the same object.

    strategy: one of STRATEGIES.  mesh: see
    resolve_mesh.  units: what is gathered and freed together: classes, modules,
    or functions of a module; the rest is the root unit.

    microbatches: most backwards per step.  optimizer="torch": the optimizer
    will be torch's own, on the shards.  dtype: the type to compute in, with
    master copies in the model's; reduce_dtype: that of gradients.  init: fills
    a module's own parameters where the model is on the meta device.  sync:
    begin with the first rank's values.  hold: plan memory for hold().  lend:
    nn.Linear and nn.Embedding write the gradients of weights of lend_from
    elements or more into the engine's memory (_direct.py).  Others are the
    plan's: prefetch, max_open, reshard, defer, gather, progress,
    cap_bytes, nesting.
    """
    if not isinstance(model, nn.Module):
        raise TypeError("shard() takes a torch.nn.Module, not %s" %
                        type(model).__name__)
    if getattr(model, "_aliquot_runtime", None) is not None:
        raise ValueError("the model is sharded already; shard() is called "
                         "once, on the whole model")
    for key in plan:
        if key not in PLAN_OPTIONS:
            raise TypeError("shard() has no option %r; those of the plan are %s"
                            % (key, ", ".join(PLAN_OPTIONS)))
    if optimizer not in (None, "torch"):
        raise ValueError("optimizer=%r: leave it out, or \"torch\"" %
                         (optimizer,))
    if strategy not in STRATEGIES:
        raise ValueError("unknown strategy %r; choose one of %s%s" % (
            strategy, ", ".join(STRATEGIES),
            " (FSDP2 is fsdp here)" if strategy == "fsdp2" else ""))
    if microbatches < 1:
        raise ValueError("microbatches=%r: a step has one backward at least" %
                         (microbatches,))
    mesh = resolve_mesh(mesh)
    ranks = data_ranks(mesh)
    found, params = split(model, units)
    runtime = Runtime(model, mesh, found, params, Options(
        strategy="single" if ranks == 1 else strategy,
        microbatches=microbatches, optimizer=optimizer, dtype=dtype,
        reduce_dtype=reduce_dtype, init=init, sync=sync, hold=hold, lend=lend,
        lend_from=lend_from, name=name, poison=poison, hints=hints, plan=plan))
    for param in params:
        param.original._aliquot = (runtime, param)  # type: ignore[union-attr]
    object.__setattr__(model, "_aliquot_runtime", runtime)
    hook_units(runtime)
    _state_dict.hook_state_dicts(runtime)
    _add_methods(model, runtime)
    _torch_optim.install()
    if optimizer == "torch":
        runtime.commit()
    return model


def _add_methods(model: nn.Module, runtime: Runtime) -> None:
    """What loops written for DistributedDataParallel and FSDP call, and
    model.zero_grad(), which must drop what the engine has."""
    from ._clip import clip_grad_norm_
    held = weakref.ref(model)

    def no_sync_method() -> Any:
        target = held()
        assert target is not None
        return no_sync(target)

    def clip_method(max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        target = held()
        assert target is not None
        return clip_grad_norm_(target, max_norm, norm_type)

    def zero_grad(self: nn.Module, set_to_none: bool = True) -> None:
        if self is held():
            runtime_of(self).drop_gradients()
        else:  # a deep copy
            type(self).zero_grad(self, set_to_none)

    object.__setattr__(model, "zero_grad", types.MethodType(zero_grad, model))
    for name, method in (("no_sync", no_sync_method),
                         ("clip_grad_norm_", clip_method)):
        if not hasattr(model, name):
            object.__setattr__(model, name, method)


def runtime_of(target: Any) -> Runtime:
    runtime = getattr(target, "_aliquot_runtime", None) or getattr(
        target, "runtime", None)
    if not isinstance(runtime, Runtime):
        raise ValueError("%s is not sharded; call aliquot.torch.shard first" %
                         type(target).__name__)
    return runtime


def commit(model: nn.Module) -> nn.Module:
    """Makes the engine now instead of at the first use.  Collective."""
    runtime = runtime_of(model)
    if runtime.engine is None:
        runtime.commit()
    return model


@contextlib.contextmanager
def microbatch(model: nn.Module, weight: Optional[float] = None,
               last: Optional[bool] = None) -> Iterator[None]:
    """Says about the microbatches that begin inside: the weight in the step's
    mean (with losses that are sums, the number of tokens: the mean is then by
    token), and whether one is the step's last."""
    runtime = runtime_of(model)
    before = runtime.want_weight, runtime.want_last
    runtime.want_weight = before[0] if weight is None else weight
    runtime.want_last = before[1] if last is None else last
    try:
        yield
    finally:
        runtime.want_weight, runtime.want_last = before


def no_sync(model: nn.Module) -> Any:
    """Microbatches that begin inside are not the step's last: gradients
    accumulate.  The first that begins outside is."""
    return microbatch(model, last=False)


@contextlib.contextmanager
def hold(model: nn.Module) -> Iterator[None]:
    """Keeps the whole model gathered, for forwards without gradients, of which
    each rank may run as many as it likes (generation).  Collective."""
    runtime = runtime_of(model)
    runtime.finish()
    runtime.engine.hold()
    for unit in runtime.units:
        unit.show()
    runtime.state = HELD
    try:
        with torch.no_grad():
            yield
    finally:
        runtime.state = IDLE
        for unit in runtime.units:
            unit.entry = None
            unit.hide()
        runtime.engine.unhold()


@contextlib.contextmanager
def join(model: nn.Module) -> Iterator[None]:
    """Inside, ranks may have different numbers of batches: one that has no more
    comes to the end, and there serves the others until all are there.  The mean
    is over those that still have data.  Collective."""
    runtime = runtime_of(model)
    if runtime.options.optimizer == "torch":
        raise ValueError("torch's own optimizers step on every rank; join "
                         "needs aliquot's, which the library runs for those "
                         "that are out of data")
    runtime.joins = True
    try:
        yield
        runtime.join()
    finally:
        runtime.joins = False


@contextlib.contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """The root unit's parameters, and then those of any module that is used,
    hold their full values; for entry points that read parameters before they
    call a module.  Collective."""
    runtime = runtime_of(model)
    runtime.need_live()
    root = runtime.units[0]
    outer = root.entry is None
    if outer:
        runtime.enter(root, runtime.model)
    try:
        yield
    finally:
        if outer:
            kind = root.kind
            if runtime.state == EVAL or kind != _ffi.ALQ_PASS_F:
                runtime.leave(root)
            else:
                # The backward of what was computed here is not announced by
                # any module's output.
                root.entry = None
                root.held_open = True


def abandon(model: nn.Module) -> None:
    """Leaves the step after an exception; every rank calls it."""
    runtime_of(model).abandon()


def close(model: nn.Module, timeout: Optional[float] = None) -> None:
    """Ends the engine in order.  Collective."""
    runtime = runtime_of(model)
    if not runtime.closed:
        runtime.closed = True
        if runtime.engine is not None:
            runtime.engine.close(timeout)


def unshard(model: nn.Module) -> nn.Module:
    """Makes it an ordinary model again, with full values on every rank.
    Collective."""
    runtime = runtime_of(model)
    runtime.finish()
    values: Dict[int, nn.Parameter] = {}
    for param in runtime.params:
        values[param.id] = nn.Parameter(
            _state_dict.read_full(runtime, param).to(param.dtype),
            requires_grad=param.trainable)
    runtime.engine.close()
    runtime.closed = True
    for handle in runtime.options.handles:
        handle.remove()
    for module, own in runtime.options.forwards.items():
        del module.__dict__["forward"]
        if own is not None:
            object.__setattr__(module, "forward", own)
    for unit in runtime.units:
        for _, module in unit.modules:
            module.__dict__.pop("_apply", None)
            module._parameters = dict(dict.items(module._parameters))
    for param in runtime.params:
        for module, key in param.sites:
            module._parameters[key] = values[param.id]
    object.__delattr__(model, "_aliquot_runtime")
    for name in ("no_sync", "clip_grad_norm_", "zero_grad"):
        model.__dict__.pop(name, None)
    return model


def plan_text(model: nn.Module) -> str:
    """The memory plan, by owner."""
    return str(commit(model) and runtime_of(model).engine.plan_text())


def sharded_state_dict(model: nn.Module) -> Dict[str, Any]:
    """What this rank owns of the model and of the optimizer's state."""
    return _state.sharded_state_dict(runtime_of(model))


def load_sharded_state_dict(model: nn.Module, saved: Any) -> None:
    """saved: this rank's dict, or those of all ranks of a run with another
    number of ranks or another strategy.  Collective."""
    _state.load_sharded_state_dict(runtime_of(model), saved)
