"""The engine's calls with Python values: nothing is added, nothing left out.

aliquot/torch is built on it, and an adapter of another framework would be.
"""

import ctypes
import json
import types
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Union

from . import _dtype, _ffi
from ._arguments import items
from ._engine_desc import (MODES, PASSES, VALUES, array, engine_desc, make,
                           optimizer_desc, plain, plan_desc)
from ._error import check
from ._context import choice
from ._handle import Handle, nanoseconds, new_handle
from ._interrupt import guarded
from ._library import library, text_of
from ._memory import numpy_view, span
from ._mesh import Mesh
from ._work import Stream, stream_ref

ALL = _ffi.ALQ_UNIT_ALL


class View(NamedTuple):
    """What unit_begin lends: addresses, in the order of unit_add.  A gradient
    address of 0: not lent."""
    params: List[int]
    grads: List[int]
    betas: List[int]


class Shard(NamedTuple):
    """Own part of a parameter: elements [begin, begin + count) of the flattened
    full tensor, at address."""
    address: int
    begin: int
    count: int
    dtype: int
    engine: Any

    def numpy(self) -> Any:
        return numpy_view(self.address, self.dtype, (self.count,), self.engine)


class Engine(Handle):
    """One rank's engine on a mesh.  Calls are collective in the engine's sense:
    every rank makes the same ones in the same order."""

    _kind = "engine"
    _release = "alq_engine_release"

    def __init__(self, mesh: Any, name: Optional[str] = None,
                 **desc: Any) -> None:
        if not isinstance(mesh, Mesh):
            raise TypeError("mesh=%.80r is of type %s; give what "
                            "context.mesh() returns" %
                            (mesh, type(mesh).__name__))
        self.mesh = mesh
        raw = engine_desc(name, **desc)
        self._own(new_handle(library().alq_engine_create, mesh._live(),
                             ctypes.byref(raw), owner=mesh.context))

    def _call(self, function: Any, *args: Any) -> None:
        """A call that may block."""
        guarded(self.mesh.context, function, self._live(), *args)

    # ------------------------------------------------------------- before steps

    def param_add(self, name: str, shape: Sequence[int], dtype: Any = "f32", *,
                  trainable: bool = True, whole_rows: bool = False,
                  optim_group: int = 0) -> int:
        extents = items("shape", shape, "extents", "shape=(4, 3)")
        flags = ((_ffi.ALQ_PARAM_TRAINABLE if trainable else 0) |
                 (_ffi.ALQ_PARAM_WHOLE_ROWS if whole_rows else 0))
        raw = make(_ffi.alq_param_desc, flags=flags, name=name.encode(),
                   shape=array(ctypes.c_int64, extents), ndim=len(extents),
                   dtype=_dtype.of(dtype), optim_group=optim_group)
        out = ctypes.c_int64()
        check(library().alq_param_add, self._live(), ctypes.byref(raw),
              ctypes.byref(out))
        return out.value

    def unit_add(self, name: str, params: Sequence[int],
                 root: bool = False) -> int:
        members = items("params", params, "what param_add returned",
                        "params=[weight, bias]")
        out = ctypes.c_int64()
        check(library().alq_unit_add, self._live(), name.encode(),
              array(ctypes.c_int64, members), len(members),
              _ffi.ALQ_UNIT_ROOT if root else 0, ctypes.byref(out))
        return out.value

    def optimizer_set(self, group: int, kind: str, **desc: Any) -> None:
        """kind: "none", "adamw" (betas, eps) or "sgd" (momentum, dampening,
        nesterov); state_dtype."""
        raw = optimizer_desc(kind, **desc)
        check(library().alq_optimizer_set, self._live(), group,
              ctypes.byref(raw))

    def plan(self, strategy: str = "default",
             **desc: Any) -> types.SimpleNamespace:
        """Decides placements and memory, allocates nothing; the bytes by
        owner."""
        report = make(_ffi.alq_plan_report)
        raw = plan_desc(strategy, **desc)
        self._call(library().alq_engine_plan, ctypes.byref(raw),
                   ctypes.byref(report))
        return plain(report)

    def plan_text(self) -> str:
        return text_of(library().alq_engine_plan_text, self._live(),
                       _ffi.ALQ_FORMAT_TEXT)

    def plan_json(self) -> Dict[str, Any]:
        return dict(json.loads(text_of(library().alq_engine_plan_text,
                                       self._live(), _ffi.ALQ_FORMAT_JSON)))

    def commit(self, slab: Any = None) -> None:
        """slab: memory for a plan with memory="slab"."""
        self._slab = slab
        self._call(library().alq_engine_commit,
                   None if slab is None else span(slab, True).address)

    # --------------------------------------------------------------- parameters

    def param_write(self, param: int, data: Any, begin: int = 0,
                    what: str = "value") -> None:
        """Elements [begin, begin + size) of the full parameter, from an array
        of any float type."""
        source = span(data)
        self._call(library().alq_param_write, param, _what(what),
                   source.address, begin, source.count, source.dtype)

    def param_read(self, param: int, out: Any, begin: int = 0,
                   what: str = "value") -> Any:
        target = span(out, True)
        self._call(library().alq_param_read, param, _what(what),
                   target.address, begin, target.count, target.dtype)
        return out

    def shard_view(self, param: int, what: str = "value") -> Shard:
        """Writing through it is allowed between steps; then call
        param_touch."""
        raw = make(_ffi.alq_shard)
        check(library().alq_shard_view, self._live(), param, _what(what),
              ctypes.byref(raw))
        return Shard(raw.data or 0, raw.begin, raw.count, raw.dtype, self)

    def param_touch(self) -> None:
        self._call(library().alq_param_touch)

    # -------------------------------------------------------------------- steps

    def microbatch_begin(self, mode: str = "train", weight: float = 1.0,
                         last: bool = True) -> float:
        """Returns grad_scale, by which the loss is to be multiplied."""
        scale = ctypes.c_double()
        check(library().alq_microbatch_begin, self._live(),
              choice("mode", mode, MODES), weight, int(last),
              ctypes.byref(scale))
        return scale.value

    def unit_begin(self, unit: int, kind: str, push: bool = False,
                   stream: Optional[Stream] = None,
                   into: Optional[Sequence[int]] = None) -> View:
        """kind: "F", "F_NOGRAD", "R" or "B".  into: destinations, for a plan
        with memory="into"."""
        raw = make(_ffi.alq_unit_view, flags=_ffi.ALQ_VIEW_PUSH if push else 0)
        if into is not None:
            raw.into = array(ctypes.c_void_p, items(
                "into", into, "addresses", "into=[address]"))
        self._call(library().alq_unit_begin, unit,
                   choice("pass", kind, PASSES), stream_ref(stream),
                   ctypes.byref(raw))
        n = raw.n
        return View([raw.params[i] or 0 for i in range(n)],
                    [raw.grads[i] or 0 for i in range(n)] if raw.grads else [],
                    [raw.betas[i] for i in range(n)] if raw.betas else [])

    def unit_end(self, unit: int, kind: str,
                 stream: Optional[Stream] = None) -> None:
        check(library().alq_unit_end, self._live(), unit,
              choice("pass", kind, PASSES), stream_ref(stream))

    def grad_ready(self, param: int, stream: Optional[Stream] = None) -> None:
        check(library().alq_grad_ready, self._live(), param,
              stream_ref(stream))

    def grad_push(self, param: int, grad: Any,
                  stream: Optional[Stream] = None) -> None:
        source = span(grad)
        code, bits = _dtype.DLPACK_CODE[source.dtype]
        raw = _ffi.alq_tensor(
            data=source.address, device_type=_ffi.ALQ_DEVICE_CPU,
            ndim=len(source.shape), code=code, bits=bits, lanes=1,
            shape=array(ctypes.c_int64, source.shape))
        check(library().alq_grad_push, self._live(), param, ctypes.byref(raw),
              stream_ref(stream))

    def microbatch_end(self, stream: Optional[Stream] = None) -> None:
        self._call(library().alq_microbatch_end, stream_ref(stream))

    def step(self, lr: Union[float, Sequence[float]],
             weight_decay: Union[float, Sequence[float]] = 0.0,
             clip_norm: float = 0.0,
             stream: Optional[Stream] = None) -> types.SimpleNamespace:
        """lr and weight_decay: one value, or one per optimizer group."""
        rates = [lr] if isinstance(lr, (int, float)) else items(
            "lr", lr, "numbers", "lr=[0.1, 0.01]")
        decays = ([weight_decay] * len(rates)
                  if isinstance(weight_decay, (int, float)) else items(
                      "weight_decay", weight_decay, "numbers",
                      "weight_decay=[0.1, 0.0]"))
        if len(decays) != len(rates):
            raise ValueError("%d learning rates, %d weight decays" %
                             (len(rates), len(decays)))
        raw = make(_ffi.alq_step_desc, lr=array(ctypes.c_double, rates),
                   weight_decay=array(ctypes.c_double, decays),
                   n_groups=len(rates), clip_norm=clip_norm)
        report = make(_ffi.alq_step_report)
        self._call(library().alq_step, ctypes.byref(raw),
                   stream_ref(stream), ctypes.byref(report))
        return plain(report)

    def step_set(self, steps: int) -> None:
        check(library().alq_step_set, self._live(), steps)

    def hold(self, unit: int = ALL) -> None:
        self._call(library().alq_unit_hold, unit)

    def unhold(self, unit: int = ALL) -> None:
        self._call(library().alq_unit_unhold, unit)

    def abandon(self, timeout: Optional[float] = None) -> None:
        self._call(library().alq_engine_abandon, nanoseconds(timeout))

    def join_enter(self) -> types.SimpleNamespace:
        """This rank is out of data: serves the others until all have entered,
        or those with data leave.  What it served: microbatches, evals, steps.
        left: 1 if the others left; begun, last: microbatches of the step that
        is not taken yet, and whether the last is among them."""
        return self._join(library().alq_join_enter)

    def join_leave(self) -> types.SimpleNamespace:
        """Ends join for the ranks in it, by all that are not."""
        return self._join(library().alq_join_leave)

    def _join(self, function: Any) -> types.SimpleNamespace:
        report = make(_ffi.alq_join_report)
        self._call(function, ctypes.byref(report))
        return plain(report)

    # ------------------------------------------------------------------ reports

    def report(self) -> Dict[str, Any]:
        return dict(json.loads(text_of(library().alq_engine_report,
                                       self._live())))

    def trace_write(self, directory: str, step: int = -1) -> None:
        self._call(library().alq_engine_trace_write,
                   directory.encode(), step)

    def close(self, timeout: Optional[float] = None) -> None:
        """Orderly end.  Collective; twice is harmless."""
        if not self.closed:
            try:
                self._call(library().alq_engine_close,
                           nanoseconds(timeout))
            finally:
                self.release()


def _what(what: str) -> int:
    return choice("what", what, VALUES)
