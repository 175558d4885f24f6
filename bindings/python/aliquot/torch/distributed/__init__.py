"""The backend "aliquot" of torch.distributed, on the CPU.

    import aliquot.torch
    torch.distributed.init_process_group("aliquot")

DDP, FSDP2, DTensor, pipelining and distributed checkpoints then run on the
transports of aliquot.  The ranks find each other through torch's own store, so
torchrun, env://, tcp:// and file:// work as they do with other backends.

What differs from gloo:

- Sums are added in rank order and rounded once, so that they do not depend on
  how tensors are bucketed or on who comes late.
- A rank that calls another operation than its peers, that dies or that comes
  too late is an error on all of them, which names it.
- A send is done when the receiver has taken the data; messages of one pair of
  ranks are matched in the order of their calls.  Tags do not reorder them: a
  tag that differs from the sender's is an error.  Receiving from any rank is
  refused.

Options() as pg_options of init_process_group and new_group sets the hints of
the context.  Importing this package only registers the name.
"""

from typing import Any


def register() -> None:
    """Makes the name known to torch.distributed; twice is harmless."""
    import torch.distributed as dist
    if not dist.is_available() or "ALIQUOT" in dist.Backend._plugins:
        return
    dist.Backend.register_backend("aliquot", _create, extended_api=True,
                                  devices=["cpu"])


def _create(place: Any, options: Any) -> Any:
    from ._create import create
    return create(place, options)


def __getattr__(name: str) -> Any:
    if name == "Options":
        from ._create import Options
        return Options
    if name == "ProcessGroup":
        from ._group import ProcessGroup
        return ProcessGroup
    raise AttributeError(name)


register()
