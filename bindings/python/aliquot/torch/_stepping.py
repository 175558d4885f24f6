"""The end of a step: from the last microbatch to the update, and what the caller
does with gradients in between."""

from typing import Any, List

from .._error import failed_precondition
from ._parts import Param, Unit
from ._states import HELD, IDLE


class Stepping:
    """The part of Runtime that ends steps."""

    engine: Any
    mesh: Any
    options: Any
    units: List[Unit]
    params: List[Param]
    late: List[Param]
    need_live: Any
    commit: Any
    end_microbatch: Any
    groups: int
    steps: int
    state: int
    grads_shown: bool
    clip: float
    norm_out: Any

    def clear_step(self) -> None:
        self.count = 0  # TRAIN microbatches begun
        self.last = False  # the last of them was the step's last
        self.deferred = False  # some began inside no_sync
        self.weight = 0.0
        self.grads: Any = None  # _grads.Reduced, once somebody looked

    def finish(self) -> None:
        """Leaves no microbatch running."""
        self.need_live()
        if self.engine is None:
            self.commit()
        if self.state == HELD:
            raise failed_precondition(
                "the units are held; leave aliquot.torch.hold first")
        if self.state != IDLE:
            self.end_microbatch()

    def finish_step(self) -> bool:
        """All microbatches are in; False if there was none."""
        self.finish()
        if self.count == 0:
            return False
        if not self.last:
            self.engine.microbatch_begin("train", 0.0, True)
            self.last = True
            self.engine.microbatch_end()
        return True

    def step(self, rates: List[float], decays: List[float]) -> Any:
        """The step report, or None without a microbatch."""
        if not self.finish_step():
            return None
        if not self.settle_grads():
            self.drop_gradients()  # the caller did
            return None
        self.hide_grads()
        report = self.engine.step(rates, decays, self.clip)
        if self.norm_out is not None:
            self.norm_out.fill_(report.grad_norm)
        self.clip, self.norm_out = 0.0, None
        self.clear_step()
        self.steps += 1
        return report

    def step_torch(self) -> Any:
        """The step for torch's own optimizers: the engine updates nothing."""
        self.asked_clip, self.clip = self.clip, 0.0
        rates = [0.0] * self.groups
        return self.step(rates, rates)

    def abandon(self) -> None:
        self.engine.abandon()
        self.forget_step()

    def drop_gradients(self) -> None:
        """Every rank does: so all are waited for, lest leaving the step ends
        the backward of one that is still in it."""
        if self.count and self.state == IDLE:
            from ._grads import DATA_AXES
            self.mesh.group(DATA_AXES).barrier()
            self.abandon()

    def forget_step(self) -> None:
        for unit in self.units:
            while unit.shown > 0:
                unit.hide()
            unit.entry = None
            unit.held_open = unit.held_part = False
        for param in self.params:
            if param.full is not None:
                param.full.grad = None
        self.late.clear()
        self.state, self.graph, self.owner = IDLE, -1, None
        self.broken = None
        self.clip, self.norm_out = 0.0, None
        self.hide_grads()
        self.clear_step()

    def grads_now(self) -> Any:
        """The reduced gradients; looked at between backward and step only."""
        if self.grads is None:
            if not self.last or self.state != IDLE:
                raise failed_precondition(
                    "gradients exist between the last backward of a step and "
                    "optimizer.step()")
            from . import _grads
            self.grads = _grads.Reduced(self)
        return self.grads

    def show_grads(self) -> None:
        from . import _grads
        _grads.show(self)
        self.grads_shown = True

    def settle_grads(self) -> bool:
        from . import _grads
        return not self.grads_shown or _grads.settle(self)

    def hide_grads(self) -> None:
        if self.grads_shown:
            from . import _grads
            _grads.hide(self)
            self.grads_shown = False
