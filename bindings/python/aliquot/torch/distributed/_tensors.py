"""What a collective reads and writes: addresses of checked tensors, and
contiguous copies where a tensor is not contiguous."""

from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import torch

from ... import _dtype
from ._errors import unsupported

CODES = {getattr(torch, name): code
         for name, code in _dtype.LONG_NAMES.items() if hasattr(torch, name)}
After = Optional[Callable[[], None]]


class Place(NamedTuple):
    """count elements of type code at address; tensor holds the memory; after
    brings what was written there to where the caller wants it."""
    address: int
    count: int
    code: int
    tensor: Any
    after: After


def plain(tensor: Any) -> torch.Tensor:
    """The tensor itself, complex numbers as pairs; refuses what has no
    contiguous host memory of a known type."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError("a collective takes tensors, not %s" %
                        type(tensor).__name__)
    if tensor.layout is not torch.strided:
        raise unsupported("the tensor is %s; the backend aliquot takes dense "
                          "tensors, convert it by to_dense()" % tensor.layout)
    if not tensor.is_cpu:
        raise unsupported("the tensor is on %s; the backend aliquot moves "
                          "memory of the CPU, use it as cpu:aliquot beside a "
                          "backend of that device" % tensor.device)
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype not in CODES:
        raise unsupported("elements of %s are unknown; known are %s" % (
            tensor.dtype, ", ".join(str(d)[6:] for d in CODES)))
    return tensor.resolve_neg() if tensor.is_neg() else tensor


def source(tensor: torch.Tensor) -> Place:
    """A tensor that is read."""
    code = CODES.get(tensor.dtype)
    if (code is None or not tensor.is_cpu or
            tensor.layout is not torch.strided or tensor.is_neg()):
        tensor = plain(tensor)
        code = CODES[tensor.dtype]
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return Place(tensor.data_ptr(), tensor.numel(), code, tensor, None)


def target(tensor: torch.Tensor, keep: bool = False) -> Place:
    """A tensor that is written; keep: what is there is read too."""
    code = CODES.get(tensor.dtype)
    if (code is not None and tensor.is_cpu and
            tensor.layout is torch.strided and not tensor.is_neg() and
            tensor.is_contiguous()):
        return Place(tensor.data_ptr(), tensor.numel(), code, tensor, None)
    real = plain(tensor)
    if real.is_contiguous() and (
            real is tensor or real.data_ptr() == tensor.data_ptr()):
        return Place(real.data_ptr(), real.numel(), CODES[real.dtype], real,
                     None)
    staged = torch.empty(real.shape, dtype=real.dtype)
    if keep:
        staged.copy_(real)
    into = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return Place(staged.data_ptr(), staged.numel(), CODES[real.dtype], staged,
                 lambda: _copy(into, staged))


def _copy(into: torch.Tensor, staged: torch.Tensor) -> None:
    with torch.no_grad():
        into.copy_(staged)


def same_type(a: Place, b: Place) -> None:
    if a.code != b.code:
        raise TypeError("the input has elements of %s, the output of %s" % (
            _dtype.LONG[a.code], _dtype.LONG[b.code]))


def same_count(what: str, got: int, want: int) -> None:
    if got != want:
        raise ValueError("%s has %d elements, expected are %d" %
                         (what, got, want))


def _one_after_the_other(tensors: Sequence[torch.Tensor]) -> bool:
    expect = None
    dtype = tensors[0].dtype
    for tensor in tensors:
        if (tensor.dtype is not dtype or not tensor.is_cpu or
                tensor.layout is not torch.strided or tensor.is_neg() or
                dtype not in CODES or not tensor.is_contiguous()):
            return False
        count = tensor.numel()
        if count == 0:
            continue
        address = tensor.data_ptr()
        if expect is not None and address != expect:
            return False
        expect = address + count * tensor.element_size()
    return True


def _first_address(tensors: Sequence[torch.Tensor]) -> int:
    return next((t.data_ptr() for t in tensors if t.numel()), 0)


def _joined(tensors: Sequence[torch.Tensor]) -> Tuple[Any, int, int]:
    reals = [plain(t) for t in tensors]
    if len({t.dtype for t in reals}) != 1:
        raise TypeError("the tensors of the list differ in type: %s" %
                        ", ".join(sorted({str(t.dtype) for t in reals})))
    return reals, sum(t.numel() for t in reals), CODES[reals[0].dtype]


def sources(tensors: Sequence[torch.Tensor]) -> Place:
    """A list that is read as one: in place where the tensors lie one after the
    other, else from a copy."""
    if _one_after_the_other(tensors):
        return Place(_first_address(tensors), sum(t.numel() for t in tensors),
                     CODES[tensors[0].dtype], list(tensors), None)
    reals, count, code = _joined(tensors)
    flat = torch.cat([t.reshape(-1) for t in reals])
    return Place(flat.data_ptr(), count, code, flat, None)


def targets(tensors: Sequence[torch.Tensor]) -> Place:
    """A list that is written as one."""
    if _one_after_the_other(tensors):
        return Place(_first_address(tensors), sum(t.numel() for t in tensors),
                     CODES[tensors[0].dtype], list(tensors), None)
    reals, count, code = _joined(tensors)
    flat = torch.empty(count, dtype=reals[0].dtype)
    into = [torch.view_as_real(t) if t.is_complex() else t for t in tensors]
    counts = [t.numel() for t in into]

    def spread() -> None:
        with torch.no_grad():
            for tensor, part in zip(into, flat.split(counts)):
                tensor.copy_(part.view(tensor.shape))

    return Place(flat.data_ptr(), count, code, flat, spread)


def counts_of(tensors: Sequence[torch.Tensor]) -> List[int]:
    """Elements as the library counts them: complex numbers are pairs."""
    return [t.numel() * (2 if t.is_complex() else 1) for t in tensors]


def both(first: After, second: After) -> After:
    if first is None or second is None:
        return first or second

    def call() -> None:
        first()
        second()

    return call
