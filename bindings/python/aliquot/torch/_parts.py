"""What of a model is sharded: its units and their parameters.

A unit is a module that the caller chose, with everything below it that is not
in another unit; the model itself is the root unit and holds the rest.  A
parameter that several modules hold is one parameter.  Names are those of
model.named_parameters(); no meaning is read from them.
"""

from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, Union

import torch
from torch import nn

from .._arguments import items

Choice = Union[type, nn.Module, Callable[[nn.Module], bool]]


class Param:
    """One parameter of the model and its place in the engine."""

    def __init__(self, name: str, value: nn.Parameter) -> None:
        self.name = name
        self.original: Optional[nn.Parameter] = value
        self.shape = tuple(value.shape)
        self.dtype = value.dtype  # as the model was built
        self.compute = value.dtype
        self.trainable = value.requires_grad  # when the engine was planned
        self.wanted = self.trainable  # since then
        self.sites: List[Tuple[nn.Module, str]] = []
        self.units: List["Unit"] = []
        self.id = -1
        self.group = 0
        # Over the lent memory, of the full shape: what the model computes with.
        self.full: Any = None
        # What the module holds between passes: full, or the own shard, flat.
        self.rest: Any = None
        self.grad: Any = None  # own part of the reduced gradient, as p.grad
        self.grad_plain: Any = None  # the same memory, flat
        self.push: Any = None  # hands full.grad to the engine
        self.ready = False  # its gradient is final in this microbatch
        self.direct = False  # its module writes its gradient in place
        self.view: Any = None  # where its gradient may be written
        self.lent_pass = 0  # the unit's lent_pass that lent it to be written
        self.used_pass = -1  # of the unit, that used it last
        self.several = False  # used more than once in a pass
        self.address = 0  # of full
        self.copies = 1.0  # ranks that own each element
        self.whole = True  # every rank owns all of it

    @property
    def numel(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count


class Unit:
    """Parameters that are gathered and freed together."""

    def __init__(self, name: str, module: nn.Module, root: bool) -> None:
        self.name = name
        self.module = module
        self.root = root
        self.modules: List[Tuple[str, nn.Module]] = []  # its own part
        self.params: List[Param] = []
        self.id = -1
        # (module's dict, key, full, rest) where the two differ.
        self.swaps: List[Tuple[Dict[str, Any], str, Any, Any]] = []
        self.shown = 0
        self.entry: Optional[nn.Module] = None  # outermost module being called
        self.kind = 0  # of the pass that entry began
        self.traced = False  # that is a forward of which autograd keeps a graph
        self.passes = 0  # begun by a call, ever
        self.lent_pass = 0  # passes B that lent views, ever
        # (index in the view, parameter) whose gradients are written in place.
        self.direct: List[Tuple[int, Param]] = []
        self.held_open = False  # until the end of the microbatch
        self.held_part = False  # until the end of the pass B
        # Parameters were read outside of all calls: their gradients may have
        # parts that come after those of the calls.
        self.loose = False
        self.reset()

    def reset(self) -> None:
        """At the begin of a microbatch."""
        self.uses = 0  # forward passes
        self.ended = 0  # of these, whose backward is over
        self.unwatched = 0  # whose inputs have no gradient to watch
        self.backwards = 0  # passes B that are open
        # Parts of calls ran without gradients: reentrant checkpoints inside.
        self.nested = False
        self.left = sum(p.trainable for p in self.params)

    def show(self) -> None:
        """Puts the full parameters into the modules, except where the caller
        has put something else (torch.func.functional_call)."""
        self.shown += 1
        if self.shown == 1:
            for owner, key, full, rest in self.swaps:
                if dict.get(owner, key) is rest:
                    dict.__setitem__(owner, key, full)

    def hide(self) -> None:
        self.shown -= 1
        if self.shown == 0:
            for owner, key, full, rest in self.swaps:
                if dict.get(owner, key) is full:
                    dict.__setitem__(owner, key, rest)


def _chosen(module: nn.Module, choices: Iterable[Choice]) -> bool:
    for choice in choices:
        if isinstance(choice, nn.Module):
            if module is choice:
                return True
        elif isinstance(choice, type):
            if isinstance(module, choice):
                return True
        elif choice(module):
            return True
    return False


def split(model: nn.Module, choices: Iterable[Choice]
          ) -> Tuple[List[Unit], List[Param]]:
    """The units, root first and then in the order of model.modules()."""
    choices = items("units", choices, "classes, modules or functions of a "
                    "module", "units=[Block]")
    for index, choice in enumerate(choices):
        if not callable(choice):  # modules and classes are
            raise TypeError(
                "units[%d]=%.80r is of type %s; give classes, modules or "
                "functions of a module, as in units=[Block] (by name: "
                "units=[lambda m: type(m).__name__ == \"Block\"])" %
                (index, choice, type(choice).__name__))
    units = [Unit("root", model, True)]
    owner: Dict[str, Unit] = {"": units[0]}
    params: Dict[nn.Parameter, Param] = {}
    for name, module in model.named_modules():
        unit = owner[name.rpartition(".")[0]] if name else units[0]
        if name and _chosen(module, choices):
            unit = Unit(name, module, False)
            units.append(unit)
        owner[name] = unit
        unit.modules.append((name, module))
        for key, value in module._parameters.items():
            if value is not None:
                _add(unit, module, key, value,
                     name + "." + key if name else key, params)
    for choice in choices:
        if isinstance(choice, type) and not any(
                isinstance(u.module, choice) for u in units[1:]):
            raise ValueError("the model has no %s to make units of" %
                             choice.__name__)
        if isinstance(choice, nn.Module) and not any(
                u.module is choice for u in units):
            raise ValueError("the %s among the units is no module of the model"
                             % type(choice).__name__)
    return units, list(params.values())


def _add(unit: Unit, module: nn.Module, key: str, value: nn.Parameter,
         name: str, params: Dict[nn.Parameter, Param]) -> None:
    if getattr(value, "_aliquot", None) is not None:
        raise ValueError("parameter %s is sharded already; shard() is called "
                         "once, on the whole model" % name)
    if value.device.type not in ("cpu", "meta"):
        raise ValueError("parameter %s lies on %s; this build runs on the CPU" %
                         (name, value.device))
    param = params.setdefault(value, Param(name, value))
    param.sites.append((module, key))
    if param not in unit.params:
        unit.params.append(param)
        param.units.append(unit)


def tensors_of(value: Any) -> Iterable[torch.Tensor]:
    """The tensors in what a module was given or returned."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors_of(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_of(part)
    elif hasattr(value, "__dataclass_fields__"):
        for field in value.__dataclass_fields__:
            yield from tensors_of(getattr(value, field))


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor],
                value: Any) -> Any:
    """The same structure with every tensor changed; others stay as they are."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)(map_tensors(change, part) for part in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(change, part) for part in value))
    if type(value) is dict:
        return {k: map_tensors(change, part) for k, part in value.items()}
    return value
