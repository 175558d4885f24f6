"""Optimizer states in PyTorch's own format, and sharded states.

optimizer.state_dict() gives full tensors on every rank, such as torch.optim
would, and loads them; every rank calls it (_state_dict.py: the model's).  sharded_state_dict() gives what this rank owns, and
load_sharded_state_dict() takes the dicts of any number of ranks: ranges of
flattened tensors, whatever they were cut for.
"""

from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple, Union

import torch

from .._arguments import items
from .._error import failed_precondition
from ._lend import TORCH, shard_tensor, tensor_at
from ._parts import Param
from ._runtime import Runtime
from ._state_dict import read_full, write_full

FORMAT = "aliquot-shards-1"
_STATES = ("state0", "state1")


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
    triples = list(zip(optimizer.param_groups, optimizer.members,
                       saved["param_groups"]))
    for group, members, theirs in triples:
        if len(theirs["params"]) != len(members):
            raise ValueError("a parameter group has %d parameters in the state "
                             "dict, %d here" % (len(theirs["params"]),
                                                len(members)))
        for number, param in zip(theirs["params"], members):
            _check_entry(optimizer, group, param, saved["state"].get(number))
    steps = 0
    for group, members, theirs in triples:
        names = states_of(optimizer, group)
        group.update({k: v for k, v in theirs.items() if k != "params"})
        for number, param in zip(theirs["params"], members):
            if not param.trainable:
                continue
            entry = saved["state"].get(number) or {}
            if entry:
                steps = max(steps, int(entry.get("step", 1)))
            for what, name in zip(_STATES, names):
                value = entry.get(name)
                if value is None:  # as it is before the first step
                    value = torch.zeros(param.shape, dtype=param.dtype)
                write_full(runtime, param, value, what)
    set_steps(runtime, steps)


def _check_entry(optimizer: Any, group: Dict[str, Any], param: Param,
                 entry: Optional[Dict[str, Any]]) -> None:
    """Before anything is written."""
    if not entry or not param.trainable:
        return
    for name in states_of(optimizer, group):
        value = entry.get(name)
        if value is None and optimizer.kind == "adamw":
            raise ValueError("the state dict has no %s of parameter %s: it is "
                             "of another optimizer, with %s" % (
                                 name, param.name, ", ".join(entry)))
        if value is not None and tuple(value.shape) != param.shape:
            raise ValueError("%s of parameter %s has the shape %s in the state "
                             "dict, the parameter %s" % (
                                 name, param.name, tuple(value.shape),
                                 param.shape))


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
    pieces = [saved] if isinstance(saved, Mapping) else items(
        "saved", saved, "dicts", "[torch.load(name) for name in names]")
    runtime.finish()
    if not pieces:
        raise ValueError("saved holds 0 dicts; give those of sharded_state_dict "
                         "of all ranks")
    for index, piece in enumerate(pieces):
        if not isinstance(piece, Mapping) or piece.get("format") != FORMAT:
            raise ValueError(
                "dict %d of %d is no sharded state dict, but a %s%s; give what "
                "sharded_state_dict returned" % (
                    index, len(pieces), type(piece).__name__,
                    " of format %r" % piece.get("format") if isinstance(
                        piece, Mapping) else ""))
    runtime.engine.param_touch()  # no rank still reads what all may share
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
