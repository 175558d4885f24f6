"""Collectives on single tensors.

Every method takes torch's options or, as ProcessGroup's other overloads do, the
arguments themselves.
"""

from datetime import timedelta
from typing import Any, List, Optional, Tuple

import torch

from ..._error import Error
from ..._library import library
from ._reduce import factor_of, reduction
from ._tensors import Place, same_count, same_type, source, target
from ._work import Several

Timeout = Optional[timedelta]


def call_of(opts: Any, timeout: Timeout) -> Tuple[bool, Timeout]:
    """(done on return, time-out of its own) of a call."""
    if opts is None:
        return False, timeout
    return (not getattr(opts, "asyncOp", True),
            opts.timeout if timeout is None else timeout)


def op_of(opts: Any, op: Any) -> Any:
    """The reduction: that of the options, or given in their place."""
    if op is not None:
        return op
    if opts is None:
        return torch.distributed.ReduceOp.SUM
    return getattr(opts, "reduceOp", opts)


def options(opts: Any) -> Any:
    """The options, unless a reduction stands in their place."""
    return opts if hasattr(opts, "timeout") else None


def only(tensors: Any, what: str = "collective") -> torch.Tensor:
    """The one tensor of a call."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError("a %s of the backend aliquot takes one tensor per "
                         "rank, not %d" % (what, len(tensors)))
    return tensors[0]


class Collectives:
    """The part of ProcessGroup that moves one tensor per rank."""

    _rank: int
    _size: int
    _issue: Any
    _counts: Any
    _live: Any
    _timeout_ns: int

    def allreduce(self, tensors: Any, opts: Any = None, op: Any = None,
                  timeout: Timeout = None) -> Any:
        tensor = only(tensors, "all-reduce")
        sync, timeout = call_of(options(opts), timeout)
        return self._all_reduce(tensor, op_of(opts, op), sync, timeout)

    def _all_reduce(self, tensor: torch.Tensor, op: Any, sync: bool,
                    timeout: Timeout) -> Any:
        out = target(tensor, True)
        factor = factor_of(op, out.code)
        if factor is not None:
            return self._issue(
                library().alq_group_all_reduce_premul,
                (out.address, out.address, out.count, out.code, factor), sync,
                out.tensor, out.after, [tensor], timeout)
        kind, code, read = reduction(op, out.tensor, out.code)
        return self._issue(
            library().alq_group_all_reduce,
            (read.data_ptr(), out.address, out.count, code, kind), sync,
            (read, out.tensor), out.after, [tensor], timeout)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        op = op_of(opts, None)
        sync, timeout = call_of(options(opts), None)
        if len(tensors) == 1:
            return self._all_reduce(tensors[0], op, sync, timeout)
        return Several([self._all_reduce(tensor, op, sync, timeout)
                        for tensor in tensors], list(tensors))

    def allreduce_sparse(self, tensors: Any, opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)  # refuses, naming the layout

    def broadcast(self, tensors: Any, opts: Any = None, root: Any = None,
                  timeout: Timeout = None) -> Any:
        tensor = only(tensors, "broadcast")
        if isinstance(opts, int):
            opts, root = None, opts
        sync, timeout = call_of(opts, timeout)
        if root is None:
            root = 0 if opts is None else opts.rootRank
        out = (source if root == self._rank else target)(tensor)
        return self._issue(library().alq_group_broadcast,
                           (out.address, out.count, out.code, root), sync,
                           out.tensor, out.after, [tensor], timeout)

    def reduce(self, tensors: Any, opts: Any = None, root: Any = None,
               op: Any = None, timeout: Timeout = None) -> Any:
        tensor = only(tensors, "reduce")
        if isinstance(opts, int):
            opts, root = None, opts
        sync, timeout = call_of(opts, timeout)
        if root is None:
            root = 0 if opts is None else opts.rootRank
        at_root = root == self._rank
        out = target(tensor, True) if at_root else source(tensor)
        factor = factor_of(op_of(opts, op), out.code)
        if factor is not None:
            return self._issue(
                library().alq_group_reduce_premul,
                (out.address, out.address if at_root else None, out.count,
                 out.code, factor, root), sync, out.tensor, out.after,
                [tensor], timeout)
        kind, code, read = reduction(op_of(opts, op), out.tensor, out.code)
        return self._issue(
            library().alq_group_reduce,
            (read.data_ptr(), out.address if at_root else None, out.count,
             code, kind, root), sync, (read, out.tensor), out.after, [tensor],
            timeout)

    # ---------------------------------------------------- one tensor in and out

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor,
                          opts: Any = None, timeout: Timeout = None) -> Any:
        sync, timeout = call_of(opts, timeout)
        read, out = source(input), target(output)
        same_type(read, out)
        same_count("the output", out.count, read.count * self._size)
        return self._issue(library().alq_group_all_gather,
                           (read.address, out.address, read.count, read.code),
                           sync, (read.tensor, out.tensor), out.after,
                           [output], timeout)

    _allgather_base = all_gather_single

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor,
                              opts: Any = None, op: Any = None,
                              timeout: Timeout = None) -> Any:
        sync, timeout = call_of(options(opts), timeout)
        read, out = source(input), target(output)
        same_type(read, out)
        same_count("the input", read.count, out.count * self._size)
        return self._reduce_scatter(read, out, None, op_of(opts, op), sync,
                                    [output], timeout)

    _reduce_scatter_base = reduce_scatter_single

    def _reduce_scatter(self, read: Place, out: Place, counts: Any, op: Any,
                        sync: bool, result: List[torch.Tensor],
                        timeout: Timeout) -> Any:
        factor = factor_of(op, read.code)
        if factor is not None:
            return self._issue(
                library().alq_group_reduce_scatter_premul,
                (read.address, out.address, out.count,
                 None if counts is None else self._counts(counts), read.code,
                 factor), sync, (read.tensor, out.tensor), out.after, result,
                timeout)
        kind, code, tensor = reduction(op, read.tensor, read.code) \
            if isinstance(read.tensor, torch.Tensor) else \
            self._reduction_of_list(op, read)
        address = read.address if tensor is read.tensor else tensor.data_ptr()
        if counts is None:
            call, size = library().alq_group_reduce_scatter, out.count
        else:
            call = library().alq_group_reduce_scatter_v
            size = self._counts(counts)
        return self._issue(call, (address, out.address, size, code, kind),
                           sync, (tensor, out.tensor), out.after, result,
                           timeout)

    def _reduction_of_list(self, op: Any, read: Place) -> Any:
        """A list in one memory: scaled, if it has to be, as one tensor."""
        kind, code, first = reduction(op, read.tensor[0], read.code)
        if first is read.tensor[0]:
            return kind, code, read.tensor
        flat = torch.cat([t.reshape(-1) for t in read.tensor])
        return reduction(op, flat, read.code)

    def _several(self, call: Any, outputs: Any, inputs: Any,
                 opts: Any) -> Any:
        if len(outputs) != len(inputs):
            raise ValueError("%d outputs for %d inputs" %
                             (len(outputs), len(inputs)))
        works = [call(o, i, opts) for o, i in zip(outputs, inputs)]
        return works[0] if len(works) == 1 else Several(works, list(outputs))

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any,
                                    opts: Any = None) -> Any:
        return self._several(self.all_gather_single, outputs, inputs, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any,
                                        opts: Any = None) -> Any:
        return self._several(self.reduce_scatter_single, outputs, inputs, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def all_to_all_single(self, output: torch.Tensor, input: torch.Tensor,
                          output_split_sizes: Any = None,
                          input_split_sizes: Any = None, opts: Any = None,
                          timeout: Timeout = None) -> Any:
        sync, timeout = call_of(opts, timeout)
        read, out = source(input), target(output)
        same_type(read, out)
        if read.address == out.address and read.count:
            copy = read.tensor.clone()
            read = read._replace(address=copy.data_ptr(), tensor=copy)
        keep = (read.tensor, out.tensor)
        if not output_split_sizes and not input_split_sizes:
            same_count("the output", out.count, read.count)
            self._divisible("input", input)
            return self._issue(
                library().alq_group_all_to_all,
                (read.address, out.address, read.count // self._size,
                 read.code), sync, keep, out.after, [output], timeout)
        return self._issue(
            library().alq_group_all_to_all_v,
            (read.address, self._splits("input", input_split_sizes, read),
             out.address, self._splits("output", output_split_sizes, out),
             read.code), sync, keep, out.after, [output], timeout)

    alltoall_base = all_to_all_single

    def _divisible(self, what: str, tensor: torch.Tensor) -> None:
        rows = tensor.shape[0] if tensor.dim() else 1
        if rows % self._size:
            raise ValueError(
                "the first dim of the %s has %d rows, which do not divide "
                "among %d ranks; give split sizes" % (what, rows, self._size))

    def _splits(self, what: str, sizes: Any, place: Place) -> Any:
        """Elements per rank from rows per rank; none: equal parts."""
        tensor = place.tensor
        rows = tensor.shape[0] if tensor.dim() else 1
        if not sizes:
            self._divisible(what, tensor)
            sizes = [rows // self._size] * self._size
        same_count("the list of %s split sizes" % what, len(sizes), self._size)
        if sum(sizes) != rows or min(sizes) < 0:
            raise ValueError("the %s split sizes %s do not add up to its %d "
                             "rows" % (what, list(sizes), rows))
        per_row = place.count // rows if rows else 0
        return self._counts([size * per_row for size in sizes])

    # ----------------------------------------------------- gather into a tensor

    def gather_single(self, output: torch.Tensor, input: torch.Tensor,
                      opts: Any = None) -> Any:
        sync, timeout = call_of(opts, None)
        root = 0 if opts is None else opts.rootRank
        return self._gather(source(input), target(output) if root == self._rank
                            else None, root, sync, [output], timeout)

    gather_into_tensor = gather_single

    def _gather(self, read: Place, out: Optional[Place], root: int, sync: bool,
                result: List[torch.Tensor], timeout: Timeout) -> Any:
        if out is not None:
            same_type(read, out)
            same_count("the output", out.count, read.count * self._size)
        return self._issue(
            library().alq_group_gather,
            (read.address, None if out is None else out.address, read.count,
             None, read.code, root), sync,
            (read.tensor, None if out is None else out.tensor),
            None if out is None else out.after, result, timeout)

    # ----------------------------------------------------------------- barriers

    def barrier(self, opts: Any = None, timeout: Timeout = None) -> Any:
        sync, timeout = call_of(opts, timeout)
        return self._issue(library().alq_group_barrier, (), sync, None, None,
                           [], timeout)

    def monitored_barrier(self, timeout: Timeout = None,
                          wait_all_ranks: bool = False) -> None:
        """A barrier whose error names the ranks that did not come.  It ends the
        process group, as any time-out does."""
        try:
            self._issue(library().alq_group_barrier, (), True, None, None, [],
                        timeout)
        except Error as error:
            error.message = "monitored_barrier: " + error.message
            raise
