"""PyTorch models on the engine.

    model = aliquot.torch.shard(model, "fsdp", units=[Block])
    optimizer = aliquot.torch.AdamW(model.parameters(), lr=3e-4)
    for batch in loader:                  # the loop that there was before
        loss = model(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as _missing:
    raise ModuleNotFoundError(
        "aliquot.torch needs PyTorch (pip install torch)",
        name=_missing.name) from None

from . import distributed as _distributed  # registers the backend
from ._api import (abandon, close, commit, gathered, hold, join,
                   load_sharded_state_dict, microbatch, no_sync, plan_text,
                   shard, sharded_state_dict, unshard)
from ._clip import clip_grad_norm_
from ._optim import SGD, AdamW
from ._world import default_context

__all__ = ["AdamW", "SGD", "abandon", "clip_grad_norm_", "close", "commit",
           "default_context", "gathered", "hold", "join",
           "load_sharded_state_dict",
           "microbatch", "no_sync", "plan_text", "shard",
           "sharded_state_dict", "unshard"]
