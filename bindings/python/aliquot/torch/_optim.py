"""The engine's fused optimizers as torch optimizers.

They have param_groups, so that learning-rate schedulers work; step() is the
engine's step on the own shards, and zero_grad() has nothing to do, since
gradients never stay in tensors.  State dicts are those of torch.optim, with
full tensors (_state.py).
"""

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from .._arguments import items
from .._error import failed_precondition
from ._runtime import Runtime


def owner_of(tensor: torch.Tensor) -> Tuple[Runtime, Any]:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            "%.80r is of type %s and no parameter of a sharded model; give "
            "model.parameters()" % (tensor, type(tensor).__name__))
    owner = getattr(tensor, "_aliquot", None)
    if owner is None:
        raise ValueError(
            "a tensor of shape %s is no parameter of a sharded model; call "
            "aliquot.torch.shard(model) first and give the optimizer "
            "model.parameters() afterwards" % (tuple(tensor.shape),))
    return owner  # type: ignore[no-any-return]


class EngineOptimizer(torch.optim.Optimizer):
    """What AdamW and SGD share."""

    kind = ""
    state_names: Tuple[str, ...] = ()
    fixed: Tuple[str, ...] = ()  # options that the engine is planned with

    def __init__(self, params: Any, defaults: Dict[str, Any]) -> None:
        for name in ("lr", "weight_decay", "eps", "momentum"):
            if defaults.get(name, 0.0) < 0.0:
                raise ValueError("%s is %r; it must not be negative" %
                                 (name, defaults[name]))
        self.runtime: Optional[Runtime] = None
        super().__init__(params, defaults)
        owners = [[owner_of(p) for p in group["params"]]
                  for group in self.param_groups]
        runtimes = {id(rt): rt for group in owners for rt, _ in group}
        if len(runtimes) != 1:
            raise ValueError("one optimizer serves one sharded model; these "
                             "parameters belong to %d" % len(runtimes))
        runtime = next(iter(runtimes.values()))
        self.members = [[param for _, param in group] for group in owners]
        self.engine_groups = [(self.kind, self.describe(group))
                              for group in self.param_groups]
        self.planned = [self.fixed_of(group) for group in self.param_groups]
        self.last_report: Any = None
        attach(runtime, self)
        self.runtime = runtime

    def describe(self, group: Dict[str, Any]) -> Dict[str, Any]:
        raise NotImplementedError

    def fixed_of(self, group: Dict[str, Any]) -> Tuple[Any, ...]:
        return tuple(group[name] for name in self.fixed)

    def adopt(self) -> None:
        """The engine's Parameter objects take the place of the old ones."""
        for group, members in zip(self.param_groups, self.members):
            group["params"] = [param.rest for param in members]

    @property
    def grad_norm(self) -> float:
        """Global norm of the last step's mean gradient, before clipping."""
        return float("nan") if self.last_report is None else float(
            self.last_report.grad_norm)

    @property
    def skipped(self) -> bool:
        """Whether the last step was skipped for a non-finite gradient."""
        return self.last_report is not None and bool(self.last_report.skipped)

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        runtime = self.runtime
        assert runtime is not None
        for group, planned in zip(self.param_groups, self.planned):
            if self.fixed_of(group) != planned:
                raise failed_precondition(
                    "%s of a parameter group were changed from %s to %s after "
                    "the engine was planned; lr and weight_decay may change "
                    "(schedulers that cycle momentum: cycle_momentum=False)" %
                    (self.fixed, planned, self.fixed_of(group)))
        rates = [float(group["lr"]) for group in self.param_groups]
        decays = [float(group["weight_decay"]) for group in self.param_groups]
        if len(rates) < runtime.groups:  # trainable, in no group: unchanged
            rates.append(0.0)
            decays.append(0.0)
        self.refuse_frozen(rates)
        report = runtime.step(rates, decays)
        if report is not None:
            self.last_report = report
        return loss

    def refuse_frozen(self, rates: List[float]) -> None:
        """torch leaves alone what has no gradient; here it has zeros, which
        moments and decay turn into updates."""
        for group, members, rate in zip(self.param_groups, self.members, rates):
            if rate == 0 or (self.kind == "sgd" and not group["momentum"] and
                             not group["weight_decay"]):
                continue
            for param in members:
                if param.trainable and not param.wanted:
                    raise failed_precondition(
                        "parameter %s was frozen after the engine was planned, "
                        "and its states and weight decay would still move it: "
                        "freeze it before shard, or set the lr of its group to "
                        "0 meanwhile" % param.name)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Free: step() has dropped the gradients.  Between backward and step it
        drops what was accumulated, which every rank must do."""
        assert self.runtime is not None
        self.runtime.drop_gradients()

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        if getattr(self, "runtime", None) is not None:
            raise failed_precondition(
                "the engine is planned; give all groups to the constructor")
        # torch keeps its compiler out of this method, and imports all of it to
        # do so: 160 MB and a second that nothing here needs.
        inner = torch.optim.Optimizer.add_param_group
        getattr(inner, "__wrapped__", inner)(self, param_group)

    def state_dict(self) -> Dict[str, Any]:
        """torch.optim's, with full tensors.  Collective."""
        from . import _state
        return _state.optimizer_state_dict(self)

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """torch.optim's, with full tensors.  Collective."""
        from . import _state
        _state.load_optimizer_state_dict(self, state_dict)


def attach(runtime: Runtime, optimizer: EngineOptimizer) -> None:
    if runtime.options.optimizer == "torch":
        raise failed_precondition(
            "the model was sharded for torch's own optimizers; leave out "
            "optimizer=\"torch\" to use aliquot's")
    if runtime.optimizer is not None:
        raise failed_precondition(
            "the model has an optimizer; use parameter groups for several "
            "settings")
    if runtime.engine is not None:
        runtime.finish()
        if runtime.count or runtime.steps:
            raise failed_precondition(
                "the model has been trained without an optimizer; create it "
                "before the first backward")
    runtime.optimizer = optimizer
    try:
        runtime.commit()
    except BaseException:
        runtime.optimizer = None
        raise


def _refuse(options: Dict[str, Any], *names: str) -> None:
    for name in names:
        if options.get(name):
            raise ValueError("%s=True is not an option of the engine's "
                             "optimizer" % name)


class AdamW(EngineOptimizer):
    """torch.optim.AdamW's arithmetic.  foreach and fused mean nothing here: it
    is one pass over the shards anyway."""

    kind = "adamw"
    state_names = ("exp_avg", "exp_avg_sq")
    fixed = ("betas", "eps")

    def __init__(self, params: Any, lr: float = 1e-3,
                 betas: Tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 1e-2, *, amsgrad: bool = False,
                 maximize: bool = False, foreach: Optional[bool] = None,
                 fused: Optional[bool] = None, state_dtype: Any = None) -> None:
        _refuse(dict(amsgrad=amsgrad, maximize=maximize), "amsgrad",
                "maximize")
        self.state_dtype = state_dtype
        betas = tuple(items("betas", betas, "two numbers",
                            "betas=(0.9, 0.999)"))
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps,
                                      weight_decay=weight_decay))

    def describe(self, group: Dict[str, Any]) -> Dict[str, Any]:
        return dict(betas=group["betas"], eps=group["eps"],
                    state_dtype=self.state_dtype)


class SGD(EngineOptimizer):
    """torch.optim.SGD's arithmetic."""

    kind = "sgd"
    state_names = ("momentum_buffer",)
    fixed = ("momentum", "dampening", "nesterov")

    def __init__(self, params: Any, lr: float = 1e-3, momentum: float = 0.0,
                 dampening: float = 0.0, weight_decay: float = 0.0,
                 nesterov: bool = False, *, maximize: bool = False,
                 foreach: Optional[bool] = None, fused: Optional[bool] = None,
                 state_dtype: Any = None) -> None:
        _refuse(dict(maximize=maximize), "maximize")
        self.state_dtype = state_dtype
        super().__init__(params, dict(
            lr=lr, momentum=momentum, dampening=dampening,
            weight_decay=weight_decay, nesterov=nesterov))

    def describe(self, group: Dict[str, Any]) -> Dict[str, Any]:
        return dict(momentum=group["momentum"], dampening=group["dampening"],
                    nesterov=group["nesterov"], state_dtype=self.state_dtype)


