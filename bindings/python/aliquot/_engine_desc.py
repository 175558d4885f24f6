"""What describes an engine: strategies, plans, optimizers, by name."""

import ctypes
import types
from typing import Any, Optional, Sequence

from . import _dtype, _ffi
from ._arguments import items
from ._context import choice

STRATEGIES = {"default": _ffi.ALQ_STRATEGY_DEFAULT,
              "single": _ffi.ALQ_STRATEGY_SINGLE,
              "ddp": _ffi.ALQ_STRATEGY_DDP, "zero1": _ffi.ALQ_STRATEGY_ZERO1,
              "zero2": _ffi.ALQ_STRATEGY_ZERO2,
              "fsdp": _ffi.ALQ_STRATEGY_FSDP, "zero3": _ffi.ALQ_STRATEGY_FSDP,
              "hsdp": _ffi.ALQ_STRATEGY_HSDP,
              "custom": _ffi.ALQ_STRATEGY_CUSTOM}
PASSES = {"F": _ffi.ALQ_PASS_F, "F_NOGRAD": _ffi.ALQ_PASS_F_NOGRAD,
          "R": _ffi.ALQ_PASS_R, "B": _ffi.ALQ_PASS_B}
MODES = {"train": _ffi.ALQ_TRAIN, "eval": _ffi.ALQ_EVAL}
VALUES = {"value": _ffi.ALQ_VALUE, "grad": _ffi.ALQ_GRAD,
          "state0": _ffi.ALQ_STATE_0, "state1": _ffi.ALQ_STATE_1}
OPTIMIZERS = {"none": _ffi.ALQ_OPTIM_NONE, "adamw": _ffi.ALQ_OPTIM_ADAMW,
              "sgd": _ffi.ALQ_OPTIM_SGD}
DETERMINISM = {"default": 0, "canonical": _ffi.ALQ_DETERMINISM_CANONICAL,
               "fast": _ffi.ALQ_DETERMINISM_FAST}
ACCUMULATE = {"default": 0, "exact": _ffi.ALQ_ACCUMULATE_EXACT,
              "fast": _ffi.ALQ_ACCUMULATE_FAST}
GATHERS = {"auto": _ffi.ALQ_GATHER_AUTO, "copy": _ffi.ALQ_GATHER_COPY,
           "map": _ffi.ALQ_GATHER_MAP}
DEFERS = {"default": _ffi.ALQ_DEFER_DEFAULT, "each": _ffi.ALQ_DEFER_EACH,
          "last": _ffi.ALQ_DEFER_LAST}
MEMORIES = {"lend": _ffi.ALQ_MEMORY_LEND, "slab": _ffi.ALQ_MEMORY_SLAB,
            "into": _ffi.ALQ_MEMORY_INTO}
PHASES = {"train": _ffi.ALQ_PHASE_TRAIN, "eval": _ffi.ALQ_PHASE_EVAL,
          "hold_all": _ffi.ALQ_PHASE_HOLD_ALL}
PROGRESS = {None: _ffi.ALQ_PROGRESS_AUTO, False: _ffi.ALQ_PROGRESS_OFF,
            True: _ffi.ALQ_PROGRESS_ON}
RESHARD = {None: 0, True: 1, False: 2}


def make(struct: Any, **fields: Any) -> Any:
    return struct(struct_size=ctypes.sizeof(struct), **fields)


def array(ctype: Any, values: Sequence[Any]) -> Any:
    return (ctype * max(len(values), 1))(*values)


def plain(raw: Any) -> types.SimpleNamespace:
    """The fields of a report, without the first two."""
    return types.SimpleNamespace(**{
        name: getattr(raw, name) for name, _ in raw._fields_[2:]
        if name != "reserved"})


def dtype_or_default(dtype: Any) -> int:
    return 0 if dtype is None else _dtype.of(dtype)


def plan_desc(strategy: str = "default", *, phases: Sequence[str] = (),
              microbatches: int = 0, prefetch: Optional[int] = None,
              max_open: int = 0, reshard: Optional[bool] = None,
              defer: str = "default", memory: str = "lend",
              gather: str = "auto", progress: Optional[bool] = None,
              cap_bytes: int = 0, nesting: Optional[str] = None,
              param_axes: int = 0, grad_axes: int = 0,
              state_axes: int = 0) -> Any:
    """alq_plan_desc by names.  prefetch: units ahead, 0 is none; None the
    default."""
    mask = 0
    for phase in items("phases", phases, "names", 'phases=["train", "eval"]'):
        mask |= choice("phase", phase, PHASES)
    return make(
        _ffi.alq_plan_desc, strategy=choice("strategy", strategy, STRATEGIES),
        param_axes=param_axes, grad_axes=grad_axes, state_axes=state_axes,
        phases=mask, microbatches=microbatches,
        prefetch=0 if prefetch is None else prefetch or -1, max_open=max_open,
        reshard=choice("reshard", reshard, RESHARD),
        defer=choice("defer", defer, DEFERS),
        memory=choice("memory", memory, MEMORIES),
        gather=choice("gather", gather, GATHERS),
        progress=choice("progress", progress, PROGRESS), cap_bytes=cap_bytes,
        nesting=None if nesting is None else nesting.encode())


def _betas(betas: Any) -> Any:
    pair = items("betas", betas, "two numbers", "betas=(0.9, 0.999)")
    if len(pair) != 2:
        raise ValueError("betas=%r holds %d numbers; give two, as in "
                         "betas=(0.9, 0.999)" % (betas, len(pair)))
    return pair


def optimizer_desc(kind: str, *, betas: Any = (0.9, 0.999), eps: float = 1e-8,
                   momentum: float = 0.0, dampening: float = 0.0,
                   nesterov: bool = False, state_dtype: Any = None) -> Any:
    adamw = kind == "adamw"
    pair = _betas(betas) if adamw else (0.0, 0.0)
    return make(
        _ffi.alq_optimizer_desc, kind=choice("optimizer", kind, OPTIMIZERS),
        nesterov=int(nesterov), beta1=pair[0], beta2=pair[1],
        eps=eps if adamw else 0.0, momentum=momentum, dampening=dampening,
        state_dtype=dtype_or_default(state_dtype))


def engine_desc(name: Optional[str] = None, *, determinism: str = "default",
                accumulate: str = "default", grad_dtype: Any = None,
                accumulate_dtype: Any = None, master_dtype: Any = None,
                poison: bool = False, loss_scale: float = 0.0,
                hints: Any = None) -> Any:
    from ._context import hints_text
    return make(
        _ffi.alq_engine_desc, name=None if name is None else name.encode(),
        determinism=choice("determinism", determinism, DETERMINISM),
        accumulate=choice("accumulate", accumulate, ACCUMULATE),
        grad_dtype=dtype_or_default(grad_dtype),
        accumulate_dtype=dtype_or_default(accumulate_dtype),
        master_dtype=dtype_or_default(master_dtype), poison=int(poison),
        loss_scale=loss_scale, hints=hints_text(hints))
