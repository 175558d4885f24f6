"""Collectives on lists of tensors, which torch's older interfaces take.

A list whose tensors lie one after the other in memory, as the parts of one
tensor do, is used in place; another one goes through a copy.
"""

from typing import Any, List, Optional, Tuple

import torch

from ..._library import library
from ._collectives import (Timeout, call_of, only, op_of, options)
from ._tensors import (counts_of, same_count, same_type, source, sources,
                       target, targets)
from ._work import Several


def _root_of(opts: Any, root: Optional[int]) -> Tuple[Any, int]:
    """The options and the root, which callers give within them, beside them or
    in their place."""
    if isinstance(opts, int):
        return None, opts
    if root is None:
        root = 0 if opts is None else opts.rootRank
    return opts, root


def _pair(outer: Any, inner: Any) -> Any:
    """(list, tensor): [list] and [tensor], or the two themselves."""
    tensor = only(inner)
    if outer and not isinstance(outer[0], torch.Tensor):
        if len(outer) != 1:
            raise ValueError("a collective of the backend aliquot takes one "
                             "list per rank, not %d" % len(outer))
        outer = outer[0]
    return list(outer), tensor


class ListCollectives:
    _rank: int
    _size: int
    _issue: Any
    _counts: Any
    _gather: Any
    _reduce_scatter: Any

    def _check_length(self, what: str, tensors: List[Any]) -> None:
        if len(tensors) != self._size:
            raise ValueError("the %s list has %d tensors for %d ranks" %
                             (what, len(tensors), self._size))

    def allgather(self, output_tensors: Any, input_tensors: Any,
                  opts: Any = None, timeout: Timeout = None) -> Any:
        sync, timeout = call_of(opts, timeout)
        outputs, tensor = _pair(output_tensors, input_tensors)
        self._check_length("output", outputs)
        read, out, counts = source(tensor), targets(outputs), counts_of(outputs)
        same_type(read, out)
        same_count("the input", read.count, counts[self._rank])
        keep = (read.tensor, out.tensor)
        if min(counts) == max(counts):
            return self._issue(
                library().alq_group_all_gather,
                (read.address, out.address, read.count, read.code), sync,
                keep, out.after, outputs, timeout)
        return self._issue(
            library().alq_group_all_gather_v,
            (read.address, out.address, self._counts(counts), read.code), sync,
            keep, out.after, outputs, timeout)

    def allgather_coalesced(self, output_lists: Any, input_list: Any,
                            opts: Any = None) -> Any:
        """output_lists[rank][i] is what input_list[i] of that rank holds."""
        self._check_length("output", output_lists)
        works = [self.allgather([[of_rank[i] for of_rank in output_lists]],
                                [tensor], opts)
                 for i, tensor in enumerate(input_list)]
        return Several(works, [t for lists in output_lists for t in lists])

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any,
                       opts: Any = None, op: Any = None,
                       timeout: Timeout = None) -> Any:
        sync, timeout = call_of(options(opts), timeout)
        inputs, tensor = _pair(input_tensors, output_tensors)
        self._check_length("input", inputs)
        read, out, counts = sources(inputs), target(tensor), counts_of(inputs)
        same_type(read, out)
        same_count("the output", out.count, counts[self._rank])
        return self._reduce_scatter(
            read, out, None if min(counts) == max(counts) else counts,
            op_of(opts, op), sync, [tensor], timeout)

    def gather(self, output_tensors: Any, input_tensors: Any,
               opts: Any = None, root: Any = None,
               timeout: Timeout = None) -> Any:
        opts, root = _root_of(opts, root)
        sync, timeout = call_of(opts, timeout)
        outputs, tensor = _pair(output_tensors, input_tensors)
        out = None
        if root == self._rank:
            self._check_length("output", outputs)
            counts = counts_of(outputs)
            same_count("each output", max(counts), counts[self._rank])
            out = targets(outputs)
        return self._gather(source(tensor), out, root, sync, outputs, timeout)

    def scatter(self, output_tensors: Any, input_tensors: Any,
                opts: Any = None, root: Any = None,
                timeout: Timeout = None) -> Any:
        opts, root = _root_of(opts, root)
        sync, timeout = call_of(opts, timeout)
        inputs, tensor = _pair(input_tensors, output_tensors)
        out, read = target(tensor), None
        if root == self._rank:
            self._check_length("input", inputs)
            read = sources(inputs)
            same_type(read, out)
            same_count("the input", read.count, out.count * self._size)
        return self._issue(
            library().alq_group_scatter,
            (None if read is None else read.address, out.address, out.count,
             None, out.code, root), sync,
            (None if read is None else read.tensor, out.tensor), out.after,
            [tensor], timeout)

    def alltoall(self, output_tensors: Any, input_tensors: Any,
                 opts: Any = None, timeout: Timeout = None) -> Any:
        sync, timeout = call_of(opts, timeout)
        outputs, inputs = list(output_tensors), list(input_tensors)
        self._check_length("output", outputs)
        self._check_length("input", inputs)
        read, out = sources(inputs), targets(outputs)
        same_type(read, out)
        if read.address == out.address and read.count:
            flat = torch.cat([t.reshape(-1) for t in inputs])
            read = read._replace(address=flat.data_ptr(), tensor=flat)
        return self._issue(
            library().alq_group_all_to_all_v,
            (read.address, self._counts(counts_of(inputs)), out.address,
             self._counts(counts_of(outputs)), read.code), sync,
            (read.tensor, out.tensor), out.after, outputs, timeout)
