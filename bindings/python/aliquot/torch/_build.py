"""From a model to a committed engine: parameters are added, planned, filled
unit by unit, and put in place of the model's own.

The engine is made when the optimizer is known: by our optimizer's constructor,
or by the first call that needs it.  A model on the meta device is materialised
one unit at a time, so that no rank ever holds more than its shards and a unit.
"""

import ctypes
from typing import Any, Dict, List

import torch
from torch import nn

from .._engine import Engine
from .._error import failed_precondition
from . import _direct
from ._grads import DATA_AXES
from ._grads import make as make_grads
from ._hooks import hook_grad, watch_access
from ._lend import TORCH, tensor_at
from ._parts import Param, Unit
from ._runtime import Runtime


def commit(runtime: Runtime) -> None:
    """Collective.  Once committed, only an engine that never stepped can be
    made anew, for an optimizer that came later."""
    before = runtime.engine
    engine = make_engine(runtime)
    if before is None:
        for unit in runtime.units:
            fill_unit(runtime, engine, unit)
        share_buffers(runtime)
    else:
        move_values(runtime, before, engine)
        before.close()
    runtime.engine = engine
    lend(runtime)
    make_grads(runtime)
    return_freed_memory()


def return_freed_memory() -> None:
    """The model's own parameters are gone; the allocator would keep much of
    their memory."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(ctypes.c_size_t(0))


def make_engine(runtime: Runtime) -> Engine:
    options = runtime.options
    for param in runtime.params:  # may have been frozen since shard()
        if param.original is not None:
            param.trainable = param.original.requires_grad
        elif param.full is not None:
            param.trainable = param.rest.requires_grad
        param.compute = param.dtype
        if options.dtype is not None and param.dtype.is_floating_point:
            param.compute = options.dtype
    engine = Engine(runtime.mesh, options.name, poison=options.poison,
                    grad_dtype=options.reduce_dtype, hints=options.hints)
    groups = _groups(runtime)
    for param in runtime.params:
        param.group = groups.get(id(param), len(_optimizers(runtime)))
        param.id = engine.param_add(
            param.name, param.shape, param.compute, trainable=param.trainable,
            optim_group=param.group if param.trainable else 0)
    runtime.groups = max([len(_optimizers(runtime)), 1] + [
        p.group + 1 for p in runtime.params if p.trainable])
    for unit in runtime.units:
        unit.id = engine.unit_add(unit.name, [p.id for p in unit.params],
                                  unit.root)
    for index, (kind, desc) in enumerate(_optimizers(runtime)):
        engine.optimizer_set(index, kind, **desc)
    phases = ["train", "eval"] + (["hold_all"] if options.hold else [])
    runtime.plan = engine.plan(
        options.strategy, phases=phases, microbatches=options.microbatches,
        **options.plan)
    engine.commit()
    return engine


def _optimizers(runtime: Runtime) -> Any:
    return [] if runtime.optimizer is None else runtime.optimizer.engine_groups


def _groups(runtime: Runtime) -> Dict[int, int]:
    if runtime.optimizer is None:
        return {}
    return {id(param): index for index, members in
            enumerate(runtime.optimizer.members) for param in members}


# ---------------------------------------------------------------- first values


def fill_unit(runtime: Runtime, engine: Engine, unit: Unit) -> None:
    """Writes the unit's values, those of the first data rank if sync."""
    made = materialise(runtime, unit)
    group = runtime.mesh.group(DATA_AXES)
    for param in unit.params:
        if param.original is None:
            continue  # tied to an earlier unit's
        value = made.get(id(param), param.original).detach().contiguous()
        if runtime.options.sync and group.size > 1:
            group.broadcast(value, 0)
        engine.param_write(param.id, value)
        param.original._aliquot = None
        for module, key in param.sites:
            # Whoever held the old object gets a clear error instead of stale
            # values; its memory is free now.
            dict.__setitem__(module._parameters, key, None)
        if param.original.device.type != "meta":
            param.original.data = torch.empty(0, dtype=param.dtype)
        param.original = None


def materialise(runtime: Runtime, unit: Unit) -> Dict[int, torch.Tensor]:
    """Values for the unit's parameters that are on the meta device, by id."""
    made: Dict[int, torch.Tensor] = {}
    for name, module in unit.modules:
        params = {k: p for k, p in module._parameters.items()
                  if p is not None and p.device.type == "meta"}
        buffers = [b for b in module._buffers.values()
                   if b is not None and b.device.type == "meta"]
        if not params and not buffers:
            continue
        # to_empty(), past what refuses it to others.
        type(module)._apply(module, lambda t: torch.empty_like(
            t, device="cpu"), recurse=False)
        initialise(runtime.options.init, name, module)
        for key in params:
            param = next(p for p in unit.params
                         if (module, key) in p.sites)
            fresh = module._parameters[key]
            assert fresh is not None
            if id(param) not in made and param.original is not None:
                made[id(param)] = fresh.detach()
            # Held until all modules of the unit are made; then dropped.
    return made


def initialise(init: Any, name: str, module: nn.Module) -> None:
    with torch.no_grad():
        if init is not None:
            init(module)
        elif hasattr(module, "reset_parameters"):
            module.reset_parameters()
        else:
            raise ValueError(
                "module %r (%s) is on the meta device and has no "
                "reset_parameters(); give shard() init=, a function that fills "
                "a module's own parameters and buffers" %
                (name, type(module).__name__))


def share_buffers(runtime: Runtime) -> None:
    group = runtime.mesh.group(DATA_AXES)
    if not runtime.options.sync or group.size == 1:
        return
    for buffer in runtime.model.buffers():
        if buffer.device.type == "cpu" and buffer.numel() and (
                buffer.dtype in TORCH.values()):
            value = buffer.detach().contiguous()
            group.broadcast(value, 0)
            with torch.no_grad():
                buffer.copy_(value)


def move_values(runtime: Runtime, source: Engine, target: Engine) -> None:
    """One parameter at a time; both engines number them alike."""
    for param in runtime.params:
        dtype = TORCH[source.shard_view(param.id).dtype]
        value = torch.empty(param.shape, dtype=dtype)
        source.param_read(param.id, value)
        target.param_write(param.id, value)


# ------------------------------------------------------------- lent parameters


def lend(runtime: Runtime) -> None:
    """Makes the Parameter objects, once: addresses do not change."""
    engine = runtime.engine
    engine.microbatch_begin("eval")
    for unit in runtime.units:
        view = engine.unit_begin(unit.id, "F_NOGRAD")
        for param, address in zip(unit.params, view.params):
            if param.full is None or param.address != address:
                param.address = address
                param.full = nn.Parameter(
                    tensor_at(address, param.shape, param.compute, engine),
                    requires_grad=param.trainable)
                param.full._aliquot = (runtime, param)
                param.view = None
                if param.trainable:
                    hook_grad(runtime, param)
        engine.unit_end(unit.id, "F_NOGRAD")
    engine.microbatch_end()
    count_owners(runtime)
    for param in runtime.params:
        param.wanted = param.trainable
        param.rest = resting(runtime, param)
        for module, key in param.sites:
            dict.__setitem__(module._parameters, key, param.rest)
    for unit in runtime.units:
        unit.swaps = []
        watch_access(runtime, unit)
        for module, key in sites_of(unit):
            param = next(p for p in unit.params if (module, key) in p.sites)
            if param.rest is not param.full:
                unit.swaps.append((module._parameters, key, param.full,
                                   param.rest))
    _direct.choose(runtime)
    if runtime.optimizer is not None:
        runtime.optimizer.adopt()


def sites_of(unit: Unit) -> List[Any]:
    own = {id(module) for _, module in unit.modules}
    return [(module, key) for param in unit.params
            for module, key in param.sites if id(module) in own]


def count_owners(runtime: Runtime) -> None:
    """How many ranks hold a copy of each element, and whether all hold all."""
    group = runtime.mesh.group(DATA_AXES)
    counts = torch.zeros(max(len(runtime.params), 1), dtype=torch.float64)
    for param in runtime.params:
        counts[param.id] = runtime.engine.shard_view(param.id).count
    group.all_reduce(counts)
    for param in runtime.params:
        total = counts[param.id].item()
        param.copies = max(total / max(param.numel, 1), 1.0)
        param.whole = total == param.numel * group.size


def resting(runtime: Runtime, param: Param) -> nn.Parameter:
    """What the module holds between passes: the full parameter where this rank
    stores it as it is, else the part that it owns, in the type of the master
    copy."""
    shard = runtime.engine.shard_view(param.id)
    same_type = TORCH[shard.dtype] == param.compute
    if param.whole and same_type and (
            shard.address == param.address or param.numel == 0):
        return param.full  # type: ignore[no-any-return]
    shape = param.shape if param.whole else (shard.count,)
    rest = nn.Parameter(
        tensor_at(shard.address, shape, TORCH[shard.dtype], runtime.engine),
        requires_grad=param.trainable)
    rest._aliquot = (runtime, param)
    if param.trainable:
        refuse_use(rest, param.name)
    return rest


def refuse_use(rest: nn.Parameter, name: str) -> None:
    """What is computed with a part of a parameter is wrong."""
    def refuse(tensor: torch.Tensor) -> None:
        tensor.grad = None
        raise failed_precondition(
            "the loss uses parameter %s as it lies between passes, where this "
            "rank holds a part of it: read it from its module after a forward "
            "has begun, or inside aliquot.torch.gathered(model)" % name)

    rest.register_post_accumulate_grad_hook(refuse)


