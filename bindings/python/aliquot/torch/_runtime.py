"""When passes, microbatches and steps of the engine begin and end.

The loop is the caller's own; everything follows from what it does:

  first forward with gradients     begins a TRAIN microbatch
  forward without gradients        is an EVAL microbatch of its own, unless a
                                   TRAIN one is running: then a pass of that
  first event of a backward        (a unit's output has its gradient, or a
                                   checkpointed unit runs again) has the end of
                                   the microbatch called back by autograd
  optimizer.step()                 ends the step

So several forwards may go into one backward, and each backward is a microbatch
of its own.  Which microbatch is the step's last must be known when it begins:
the only one, the one that completes `microbatches`, the first outside no_sync
after some inside, or the one that microbatch(last=True) says.  A step that
comes earlier closes with an empty microbatch.

The first microbatch of a step has weight 1, the others 0: so the gradients of
all microbatches add up and are averaged over the ranks, as in PyTorch.
"""

import ctypes
import threading
from typing import Any, List, Optional

import torch

from .. import _ffi
from .._error import (Error, ResourceExhausted, failed_precondition,
                      make_error)
from .._interrupt import _guard
from .._library import library
from . import _direct
from ._parts import Param, Unit
from ._states import EVAL, HELD, IDLE, TRAIN
from ._stepping import Stepping

_task = torch._C._current_graph_task_id  # -1: no backward on this thread


class Runtime(Stepping):
    """One sharded model on one rank."""

    def __init__(self, model: Any, mesh: Any, units: List[Unit],
                 params: List[Param], options: Any) -> None:
        self.model = model
        self.mesh = mesh
        self.units = units
        self.params = params
        self.options = options
        self.engine: Any = None
        self.plan: Any = None  # bytes by owner
        self.optimizer: Any = None
        self.groups = 1  # optimizer groups of the engine
        self.steps = 0
        self.closed = False
        self.state = IDLE
        self.owner: Optional[Unit] = None  # whose end ends an EVAL microbatch
        self.graph = -1  # the running backward's
        self.serial = 0  # of backwards
        self.late: List[Param] = []
        self.broken: Optional[str] = None
        # What microbatch(), no_sync() and clip_grad_norm_() ask for.
        self.want_last: Optional[bool] = None
        self.want_weight: Optional[float] = None
        self.clip = 0.0
        self.norm_out: Any = None
        self.asked_clip = 0.0
        self.clear_step()
        self.view = _ffi.alq_unit_view()
        self.view_ref = ctypes.byref(self.view)
        self.error = _ffi.alq_error(struct_size=ctypes.sizeof(_ffi.alq_error))
        self.error_ref = ctypes.byref(self.error)
        self.grads_shown = False

    def __deepcopy__(self, memo: Any) -> None:
        """A copy of the model is an ordinary model of what it holds."""

    def __reduce__(self) -> Any:
        raise TypeError("a sharded model cannot be pickled; save "
                        "model.state_dict() instead")

    # ------------------------------------------------------------ engine calls

    def call(self, function: Any, *args: Any) -> None:
        """guarded(context, function, engine, *args), without the layers."""
        handle = self.engine._handle
        if threading.get_ident() != _guard.main:
            status = function(handle, *args, self.error_ref)
        else:
            if _guard.pipe is None:
                _guard.start()
            _guard.now = (self.mesh.context,)
            try:
                status = function(handle, *args, self.error_ref)
            finally:
                _guard.now = None
        if status:
            raise make_error(self.error)

    def unit_begin(self, unit: Unit, kind: int, flags: int =
                   _ffi.ALQ_VIEW_PUSH) -> None:
        view = self.view
        view.struct_size = ctypes.sizeof(view)
        view.flags = flags
        try:
            self.call(library().alq_unit_begin, unit.id, kind, None,
                      self.view_ref)
        except ResourceExhausted as error:
            raise ResourceExhausted(
                error.message + " (max_open= of aliquot.torch.shard)",
                error.code, error.rank) from None

    def unit_end(self, unit: Unit, kind: int) -> None:
        self.call(library().alq_unit_end, unit.id, kind, None)

    # ------------------------------------------------------------- microbatches

    def need_live(self) -> None:
        if self.closed:
            raise failed_precondition("the sharded model is closed")
        if self.graph != -1 and _task() == -1:
            self.broken = "the last backward ended with an exception"
        if self.broken is not None:
            raise failed_precondition(
                self.broken + ": the step is incomplete; call "
                "aliquot.torch.abandon(model) on every rank, or close")

    def begin_train(self) -> None:
        self.hide_grads()
        options = self.options
        last = self.want_last
        if last is None:
            last = (self.deferred or self.count + 1 >= options.microbatches)
        weight = self.want_weight
        if weight is None:
            weight = 1.0 if self.count == 0 else 0.0
        try:
            self.engine.microbatch_begin("train", weight, last)
        except Error as error:
            if self.count and error.code == _ffi.ALQ_FAILED_PRECONDITION:
                raise failed_precondition(
                    "%s.  This model was sharded with microbatches=%d, the "
                    "number of backwards before each step: call "
                    "optimizer.step() after as many, or give shard() more" %
                    (error.message, options.microbatches)) from None
            raise
        self.deferred |= self.want_last is False
        self.count += 1
        self.weight += weight
        self.last = last
        self.state = TRAIN
        for unit in self.units:
            unit.reset()
        for param in self.params:
            param.ready = param.several = False
            if param.rest.requires_grad is not param.wanted:
                self.toggle(param)

    def toggle(self, param: Param) -> None:
        """requires_grad was changed since the last microbatch."""
        wanted = param.rest.requires_grad
        if wanted and not param.trainable:
            raise failed_precondition(
                "parameter %s was frozen when the engine was planned: it has "
                "neither gradients nor optimizer states; let it require "
                "gradients before shard, and freeze it afterwards" %
                param.name)
        param.full.requires_grad_(wanted)
        param.wanted = wanted

    def end_microbatch(self) -> None:
        for unit in self.units:
            if self.state == TRAIN:
                unit.loose = False
            if unit.held_open or unit.held_part:
                unit.held_open = unit.held_part = False
                unit.hide()
        self.call(library().alq_microbatch_end, None)
        self.state = IDLE
        self.owner = None

    # ------------------------------------------------------------------ forward

    def enter(self, unit: Unit, module: Any) -> None:
        """The outermost module of a unit is called."""
        unit.entry = module
        if self.state == HELD:
            unit.kind = 0
            return
        try:
            unit.kind = self.pass_kind(unit)
            self.unit_begin(unit, unit.kind)
        except BaseException:
            unit.entry = None
            raise
        unit.passes += 1
        unit.uses += unit.kind == _ffi.ALQ_PASS_F
        unit.traced = unit.kind == _ffi.ALQ_PASS_F and torch.is_grad_enabled()
        unit.show()

    @staticmethod
    def is_part(unit: Unit) -> bool:
        """Whether the pass recomputes a part of a call whose backward runs: a
        checkpoint inside the unit.  That call's inputs and outputs are watched
        already."""
        return unit.kind == _ffi.ALQ_PASS_R and unit.backwards > 0

    def pass_kind(self, unit: Unit) -> int:
        if _task() != -1:
            self.backward_event()
            return _ffi.ALQ_PASS_R
        self.need_live()
        if self.state == IDLE:
            if self.engine is None:
                self.commit()
            if torch.is_grad_enabled() and self.trains:
                self.begin_train()
            else:
                self.engine.microbatch_begin("eval")
                self.state, self.owner = EVAL, unit
        if self.state == EVAL:
            return _ffi.ALQ_PASS_F_NOGRAD
        # A reentrant checkpoint runs forward without gradients: it counts.
        return _ffi.ALQ_PASS_F

    def leave(self, unit: Unit) -> None:
        unit.entry = None
        if unit.kind == 0:
            return
        unit.hide()
        self.unit_end(unit, unit.kind)
        if self.state == EVAL and self.owner is unit:
            self.end_microbatch()

    def show_by_access(self, unit: Unit) -> None:
        """A parameter is read outside all calls of its unit's modules: the unit
        stays open until the end of the microbatch; where a part of a call is
        computed again, until the end of that call's backward."""
        if _task() != -1:
            self.backward_event()
            kind = _ffi.ALQ_PASS_R
            unit.held_part = unit.backwards > 0
        else:
            kind = (_ffi.ALQ_PASS_F_NOGRAD if self.state == EVAL
                    else _ffi.ALQ_PASS_F)
        self.unit_begin(unit, kind)
        unit.held_open = not unit.held_part
        unit.show()

    # ----------------------------------------------------------------- backward

    def backward_event(self) -> None:
        """Something happens inside a backward; the first time, autograd is told
        to call back at its end.  Events of the outer backward come before those
        of backwards inside it."""
        if self.graph != -1:
            return
        if self.state == IDLE:
            self.begin_train()
        self.graph = _task()
        torch.autograd.Variable._execution_engine.queue_callback(
            self.backward_end)

    def begin_backward(self, unit: Unit) -> None:
        self.backward_event()
        if unit.direct and unit.uses == 1 and unit.left and not unit.loose:
            self.unit_begin(unit, _ffi.ALQ_PASS_B, 0)
            _direct.remember_views(unit, self.view, self.engine)
        else:
            self.unit_begin(unit, _ffi.ALQ_PASS_B)
        unit.backwards += 1

    def end_backward(self, unit: Unit) -> None:
        if unit.backwards > 0:
            unit.backwards -= 1
            if unit.held_part:
                unit.held_part = False
                unit.hide()
                self.unit_end(unit, _ffi.ALQ_PASS_R)
            self.unit_end(unit, _ffi.ALQ_PASS_B)

    def pushed(self, param: Param) -> None:
        param.ready = True
        for unit in param.units:
            unit.left -= 1
            if unit.left == 0:  # nothing is on the way to any input
                while unit.unwatched > 0:
                    unit.unwatched -= 1
                    self.end_backward(unit)

    def inputs_done(self, unit: Unit) -> None:
        """The gradients of the inputs of one call are there.  Autograd runs
        nodes in the reverse order of their creation, so all of the call is
        over.  After the last call, what reentrant checkpoints inside added up
        is final, and what has no gradient was not used: its zeros let the
        reduction of the unit begin."""
        unit.ended += 1
        self.end_backward(unit)
        if unit.left == 0 or unit.ended != unit.uses or any(
                other.loose for p in unit.params for other in p.units):
            return
        for param in unit.params:
            if param.trainable and not param.ready and all(
                    u.ended == u.uses for u in param.units):
                if param.full.grad is None:
                    param.full.grad = torch.zeros_like(param.full)
                param.push(param.full)

    def is_early(self, param: Param) -> bool:
        """A reentrant checkpoint finishes gradients use by use: only that of
        the last use is final.  With some inside the call of a unit, none is
        known to be the last until the call is over."""
        running = sum(unit.uses - unit.ended for unit in param.units)
        if running == 1:
            return any(unit.nested for unit in param.units)
        return running > 1 and _task() != self.graph

    def backward_end(self) -> None:
        self.graph = -1
        self.serial += 1
        late, self.late = self.late, []
        for param in late:
            param.push(param.full)
        self.end_microbatch()
        if self.last:
            self.show_grads()

    # ---------------------------------------------------------------- elsewhere

    @property
    def trains(self) -> bool:
        return any(p.trainable for p in self.params)

    def commit(self) -> None:
        from . import _build
        _build.commit(self)
