"""Point to point.

The library pairs the n-th send of a pair of ranks with the n-th receive.  Each
pair and direction has a stream of its own, so that a message that waits for its
peer holds back no other.  A tag other than 0 travels ahead of the data and is
compared by the receiver.
"""

from typing import Any

import torch

from ..._library import library
from ._collectives import only
from ._errors import mismatch, unsupported
from ._tensors import CODES, both, source, target

# No tensor of a program is likely to have this type and length.
_TAG = torch.uint16
_TAG_WORDS = 13
_TAG_CODE = CODES[_TAG]


class Messages:
    _rank: int
    _size: int
    _issue: Any
    _streams: Any
    _context: Any
    global_ranks: Any

    def _stream_to(self, peer: int, sends: bool) -> Any:
        key = (peer, sends)
        stream = self._streams.get(key)
        if stream is None:
            if not 0 <= peer < self._size:
                raise ValueError("rank %d is not among the %d ranks of the "
                                 "process group" % (peer, self._size))
            if peer == self._rank:
                raise ValueError("rank %d cannot send to itself" % peer)
            self._live()
            stream = self._streams[key] = self._context.stream()
        return stream

    def _live(self) -> Any:
        raise NotImplementedError

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        tensor = only(tensors, "send")
        read, stream = source(tensor), self._stream_to(dst, True)
        if tag:
            words = _words(tag)
            self._issue(library().alq_group_send,
                        (words.data_ptr(), _TAG_WORDS, _TAG_CODE, dst), False,
                        words, None, [], None, stream)
        return self._issue(library().alq_group_send,
                           (read.address, read.count, read.code, dst), False,
                           read.tensor, read.after, [tensor], None, stream)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        tensor = only(tensors, "receive")
        out, stream = target(tensor), self._stream_to(src, False)
        after, keep = out.after, out.tensor
        if tag:
            words = torch.zeros(_TAG_WORDS, dtype=_TAG)
            self._issue(library().alq_group_recv,
                        (words.data_ptr(), _TAG_WORDS, _TAG_CODE, src), False,
                        words, None, [], None, stream)
            after = both(lambda: self._compare(words, tag, src), after)
            keep = (out.tensor, words)
        return self._issue(library().alq_group_recv,
                           (out.address, out.count, out.code, src), False,
                           keep, after, [tensor], None, stream)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        raise unsupported("the backend aliquot receives from a rank that is "
                          "named; pass src")

    recvAnysource = recv_anysource

    def _compare(self, words: torch.Tensor, tag: int, src: int) -> None:
        if not torch.equal(words.view(torch.int16),
                           _words(tag).view(torch.int16)):
            raise mismatch(
                "a receive with tag %d met a message with tag %s of rank %d; "
                "messages of a pair of ranks are matched in the order of the "
                "calls, whatever their tags" % (
                    tag, _tag(words), self.global_ranks[src]),
                self.global_ranks[src])


def _words(tag: int) -> torch.Tensor:
    words = [ord(c) for c in "aliquot t"]
    words += [(tag >> shift) & 0xffff for shift in (0, 16, 32, 48)]
    return torch.tensor(words, dtype=torch.int32).to(_TAG)


def _tag(words: torch.Tensor) -> int:
    parts = words.to(torch.int32).tolist()[-4:]
    return sum(int(part) << shift
               for part, shift in zip(parts, (0, 16, 32, 48)))
