"""Model and optimizer states: full, in PyTorch's own format, and sharded.

model.state_dict() and optimizer.state_dict() give full tensors on every rank,
such as the unsharded model and torch.optim would, and both load them; every
rank calls them.  sharded_state_dict() gives what this rank owns, and
load_sharded_state_dict() takes the dicts of any number of ranks: ranges of
flattened tensors, whatever they were cut for.
"""

from typing import Any, Dict, Iterable, List, Tuple, Union

import torch
from torch import nn

from .._error import failed_precondition
from ._lend import TORCH, shard_tensor, tensor_at
from ._parts import Param
from ._runtime import Runtime

FORMAT = "aliquot-shards-1"
_STATES = ("state0", "state1")


def read_full(runtime: Runtime, param: Param,
              what: str = "value") -> torch.Tensor:
    """Collective.  In the type it is stored in: the master copy's."""
    dtype = TORCH[runtime.engine.shard_view(param.id, what).dtype]
    out = torch.empty(param.shape, dtype=dtype)
    runtime.engine.param_read(param.id, out, what=what)
    return out


# ------------------------------------------------------- model.state_dict()


def hook_state_dicts(runtime: Runtime) -> None:
    by_name: Dict[str, Param] = {}
    for param in runtime.params:
        for module, key in param.sites:
            for unit in runtime.units:
                for name, member in unit.modules:
                    if member is module:
                        by_name[name + "." + key if name else key] = param

    def full(module: nn.Module, state: Dict[str, Any], prefix: str,
             metadata: Any) -> None:
        runtime.finish()
        seen: Dict[int, torch.Tensor] = {}
        for name, param in by_name.items():
            if prefix + name not in state:
                continue
            if param.id not in seen:
                seen[param.id] = read_full(runtime, param)
            state[prefix + name] = seen[param.id]

    def load(module: nn.Module, state: Dict[str, Any], prefix: str,
             metadata: Any, strict: bool, missing: List[str],
             unexpected: List[str], errors: List[str]) -> None:
        runtime.finish()
        if metadata.get("assign_to_params_buffers", False):
            errors.append("a sharded model cannot load with assign=True")
            return
        written = set()
        for name, param in by_name.items():
            value = state.get(prefix + name)
            if value is None:
                continue
            if tuple(value.shape) != param.shape:
                errors.append("size mismatch for %s: %s in the state dict, %s "
                              "in the model" % (prefix + name,
                                                tuple(value.shape),
                                                param.shape))
                del state[prefix + name]
                continue
            if param.id not in written:
                written.add(param.id)
                runtime.engine.param_write(
                    param.id, value.detach().cpu().contiguous())
            # What the module itself copies is then nothing new.
            state[prefix + name] = param.rest.detach()
        runtime.engine.param_touch()

    runtime.options.handles += [
        runtime.model.register_state_dict_post_hook(full),
        runtime.model.register_load_state_dict_pre_hook(load)]


# --------------------------------------------------------- optimizer state


def states_of(optimizer: Any, group: Dict[str, Any]) -> Tuple[str, ...]:
    """Names of the states that the engine keeps, in its order."""
    if optimizer.kind == "sgd" and group["momentum"] == 0:
        return ()
    return tuple(optimizer.state_names)


def optimizer_state_dict(optimizer: Any) -> Dict[str, Any]:
    runtime = optimizer.runtime
    runtime.finish()
    state: Dict[int, Any] = {}
    groups, index = [], 0
    for group, members in zip(optimizer.param_groups, optimizer.members):
        numbers = list(range(index, index + len(members)))
        index += len(members)
        saved = {k: v for k, v in group.items() if k != "params"}
        groups.append({**saved, "params": numbers})
        if not runtime.steps:
            continue
        for number, param in zip(numbers, members):
            if not param.trainable:
                continue
            entry: Dict[str, Any] = {}
            if optimizer.kind == "adamw":
                entry["step"] = torch.tensor(float(runtime.steps))
            for what, name in zip(_STATES, states_of(optimizer, group)):
                entry[name] = read_full(runtime, param, what)
            if entry:
                state[number] = entry
    return {"state": state, "param_groups": groups}


def load_optimizer_state_dict(optimizer: Any, saved: Dict[str, Any]) -> None:
    runtime = optimizer.runtime
    runtime.finish()
    if len(saved["param_groups"]) != len(optimizer.param_groups):
        raise ValueError("the state dict has %d parameter groups, the "
                         "optimizer %d" % (len(saved["param_groups"]),
                                           len(optimizer.param_groups)))
    steps = 0
    for group, members, theirs in zip(optimizer.param_groups,
                                      optimizer.members,
                                      saved["param_groups"]):
        if len(theirs["params"]) != len(members):
            raise ValueError("a parameter group has %d parameters in the state "
                             "dict, %d here" % (len(theirs["params"]),
                                                len(members)))
        group.update({k: v for k, v in theirs.items() if k != "params"})
        for number, param in zip(theirs["params"], members):
            entry = saved["state"].get(number)
            if entry is None or not param.trainable:
                continue
            steps = max(steps, int(entry.get("step", 1)))
            for what, name in zip(_STATES, states_of(optimizer, group)):
                if entry.get(name) is not None:
                    runtime.engine.param_write(
                        param.id, entry[name].detach().cpu().contiguous(),
                        what=what)
    set_steps(runtime, steps)


def set_steps(runtime: Runtime, steps: int) -> None:
    runtime.engine.param_touch()
    runtime.engine.step_set(steps)
    runtime.steps = steps


# ------------------------------------------------------------------- sharded


def kept(runtime: Runtime, param: Param) -> List[str]:
    optimizer = runtime.optimizer
    if optimizer is None or not param.trainable or param.group >= len(
            optimizer.param_groups):
        return ["value"]
    names = states_of(optimizer, optimizer.param_groups[param.group])
    return ["value"] + list(_STATES[:len(names)])


def sharded_state_dict(runtime: Runtime) -> Dict[str, Any]:
    runtime.finish()
    params: Dict[str, Any] = {}
    for param in runtime.params:
        parts: Dict[str, Any] = {}
        begin = runtime.engine.shard_view(param.id).begin
        for what in kept(runtime, param):
            parts[what] = shard_tensor(runtime.engine, param.id, what).clone()
        params[param.name] = {"shape": param.shape, "begin": begin,
                              "parts": parts}
    buffers = {(name + "." if name else "") + key: value.detach().clone()
               for name, module in runtime.model.named_modules()
               for key, value in module._buffers.items()
               if value is not None and
               key not in module._non_persistent_buffers_set}
    groups = [] if runtime.optimizer is None else [
        {k: v for k, v in group.items() if k != "params"}
        for group in runtime.optimizer.param_groups]
    return {"format": FORMAT, "rank": runtime.mesh.context.rank,
            "steps": runtime.steps, "params": params, "buffers": buffers,
            "param_groups": groups}


def load_sharded_state_dict(
        runtime: Runtime,
        saved: Union[Dict[str, Any], Iterable[Dict[str, Any]]]) -> None:
    pieces = [saved] if isinstance(saved, dict) else list(saved)
    runtime.finish()
    for piece in pieces:
        if piece.get("format") != FORMAT:
            raise ValueError("not a sharded state dict: format %r" %
                             (piece.get("format"),))
    for param in runtime.params:
        for what in kept(runtime, param):
            _load_param(runtime, param, what, pieces)
    buffers = dict(runtime.model.named_buffers())
    with torch.no_grad():
        for name, value in pieces[0]["buffers"].items():
            buffers[name].copy_(value)
    if runtime.optimizer is not None:
        for group, theirs in zip(runtime.optimizer.param_groups,
                                 pieces[0]["param_groups"]):
            group.update(theirs)
    set_steps(runtime, pieces[0]["steps"])


def _load_param(runtime: Runtime, param: Param, what: str,
                pieces: List[Dict[str, Any]]) -> None:
    """Writes the own range from the pieces that hold parts of it."""
    shard = runtime.engine.shard_view(param.id, what)
    covered = []
    for piece in pieces:
        entry = piece["params"].get(param.name)
        if entry is None or tuple(entry["shape"]) != param.shape:
            raise ValueError("parameter %s: %s in the state dict, shape %s in "
                             "the model" % (param.name, "missing" if entry is
                                            None else entry["shape"],
                                            param.shape))
        part = entry["parts"].get(what)
        if part is None or part.numel() == 0:
            continue
        first = max(shard.begin, entry["begin"])
        last = min(shard.begin + shard.count, entry["begin"] + part.numel())
        if first < last:
            mine = tensor_at(shard.address, (shard.count,), TORCH[shard.dtype],
                             shard.engine)
            mine[first - shard.begin:last - shard.begin].copy_(
                part[first - entry["begin"]:last - entry["begin"]])
            covered.append((first, last))
    at = shard.begin
    for first, last in sorted(covered):
        at = max(at, last) if first <= at else at
    if at < shard.begin + shard.count:
        raise failed_precondition(
            "parameter %s: the state dicts hold nothing from element %d on, "
            "this rank owns up to %d; pass the dicts of all ranks" %
            (param.name, at, shard.begin + shard.count))
    if what == "value" and shard.count:
        # Rounds the master copy into the compute copy.
        runtime.engine.param_write(
            param.id, tensor_at(shard.address, (shard.count,),
                                TORCH[shard.dtype], shard.engine).clone(),
            shard.begin)
    elif what == "value":
        runtime.engine.param_write(param.id, torch.empty(0))
