"""state_dict() and load_state_dict() of a sharded model and of its modules:
PyTorch's own, with full tensors on every rank.

Each module that holds parameters has hooks of its own, so that any part of the
model may be asked.  A deep copy of the model has them too, and is an ordinary
model: hooks leave alone what is not the module that they were made for.
"""

import weakref
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import nn

from .._error import failed_precondition
from ._lend import TORCH
from ._parts import Param
from ._runtime import Runtime


def read_full(runtime: Runtime, param: Param,
              what: str = "value") -> torch.Tensor:
    """Collective.  In the type it is stored in: the master copy's."""
    dtype = TORCH[runtime.engine.shard_view(param.id, what).dtype]
    out = torch.empty(param.shape, dtype=dtype)
    runtime.engine.param_read(param.id, out, what=what)
    return out


def write_full(runtime: Runtime, param: Param, value: torch.Tensor,
               what: str = "value") -> None:
    """Collective.  Of the parameter's shape, in any type that converts."""
    if tuple(value.shape) != param.shape:
        raise ValueError("parameter %s has the shape %s, the state dict %s" % (
            param.name, param.shape, tuple(value.shape)))
    value = value.detach().cpu()
    if param.dtype.is_floating_point and not value.is_floating_point():
        value = value.to(param.dtype)
    runtime.engine.param_write(param.id, value.contiguous(), what=what)


class _Hook:
    """Of one module.  An object, since torch notes on it whose it is."""

    def __init__(self, runtime: Runtime, module: nn.Module,
                 params: Dict[str, Param]) -> None:
        self.runtime = runtime
        self.module = weakref.ref(module)
        self.params = params
        # The last tensor that was given for a parameter, and its name: tied ones
        # are one tensor in the state dict too.
        self.tied: Dict[int, Tuple[Any, str]] = runtime.options.tied

    def __deepcopy__(self, memo: Any) -> "_Hook":
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a sharded model cannot be pickled; save "
                        "model.state_dict() instead")

    def serves(self, module: nn.Module) -> bool:
        return module is self.module() and not self.runtime.closed


class _AfterStateDict(_Hook):
    def full(self, param: Param, state: Dict[str, Any]) -> torch.Tensor:
        last, key = self.tied.get(param.id, (None, ""))
        known: Optional[torch.Tensor] = None if last is None else last()
        if known is None or state.get(key) is not known:
            return read_full(self.runtime, param)
        return known

    def __call__(self, module: nn.Module, state: Dict[str, Any], prefix: str,
                 metadata: Any) -> None:
        if not self.serves(module):
            return
        self.runtime.finish()
        for key, param in self.params.items():
            name = prefix + key
            if name in state:
                value = state[name] = self.full(param, state)
                self.tied[param.id] = weakref.ref(value), name


class _BeforeLoad(_Hook):
    def __call__(self, module: nn.Module, state: Dict[str, Any], prefix: str,
                 metadata: Any, strict: bool, missing: List[str],
                 unexpected: List[str], errors: List[str]) -> None:
        if not self.serves(module):
            return
        self.runtime.finish()
        if metadata.get("assign_to_params_buffers", False):
            raise failed_precondition(
                "a sharded model cannot load with assign=True")
        for key, param in self.params.items():
            value = state.get(prefix + key)
            if not isinstance(value, torch.Tensor):
                continue  # the module says so itself
            # What the module itself copies is then nothing new.
            state[prefix + key] = param.rest.detach()
            if tuple(value.shape) == param.shape:
                write_full(self.runtime, param, value)
            else:
                errors.append("size mismatch for %s: %s in the state dict, %s "
                              "in the model" % (prefix + key,
                                                tuple(value.shape),
                                                param.shape))
        self.runtime.engine.param_touch()


def hook_state_dicts(runtime: Runtime) -> None:
    runtime.options.tied = {}
    own: Dict[nn.Module, Dict[str, Param]] = {}
    for param in runtime.params:
        for module, key in param.sites:
            own.setdefault(module, {})[key] = param
    for module, params in own.items():
        place = runtime, module, params
        runtime.options.handles += [
            module.register_state_dict_post_hook(_AfterStateDict(*place)),
            module.register_load_state_dict_pre_hook(_BeforeLoad(*place))]
