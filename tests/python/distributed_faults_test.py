"""What the members of a process group of the backend aliquot see when one is
late, dead, interrupted or calls another operation."""

import os
import signal
import time
from datetime import timedelta

import distributed_ranks
from distributed_ranks import Passing, Ranks, begin, say

import torch
import torch.distributed as dist

import aliquot

SOON = timedelta(seconds=1.5)
FAILURES = (dist.DistBackendError, aliquot.Error)


def failure(call, *args, **options):
    """The error of a call, and how long it took."""
    begun = time.monotonic()
    try:
        result = call(*args, **options)
        if result is not None:
            result.wait()
    except FAILURES as error:
        assert isinstance(error, FAILURES[0]) and isinstance(error, FAILURES[1])
        return error, time.monotonic() - begun
    raise AssertionError("the call succeeded")


def late():
    """Rank 1 does not come; the others get its name within the time-out."""
    world = begin(timeout=1.5)
    # Of its own: it outlives the world's error.
    group = dist.new_group([1, 2], timeout=SOON)
    if world.rank == 1:
        time.sleep(4.5)
        os._exit(0)
    for call in (dist.all_reduce,
                 lambda x: dist.all_reduce(x, async_op=True)):
        error, seconds = failure(call, torch.ones(3))
        assert "1" in str(error) and seconds < 30, (error, seconds)
        say("first:", type(error).__name__, error.rank, error)
    if world.rank == 2:
        error, _ = failure(dist.all_reduce, torch.ones(3), group=group)
        assert isinstance(error, aliquot.DeadlineExceeded), error
        assert error.rank == 1 and "global ranks 1, 2" in str(error), error
    say("passed")
    os._exit(0)


def late_barrier():
    world = begin()
    if world.rank == 1:
        time.sleep(3)
        os._exit(0)
    error, seconds = failure(dist.monitored_barrier, timeout=SOON)
    assert error.rank == 1 and seconds < 2.9, (error, seconds)
    assert "monitored_barrier" in str(error), error
    say("passed")
    os._exit(0)


def own_timeout():
    """A wait of one's own ends; the operation goes on."""
    world = begin()
    x = torch.full((4,), float(world.rank))
    if world.rank == 1:
        dist.distributed_c10d._get_default_store().wait(["timed out"])
        dist.all_reduce(x)
    else:
        work = dist.all_reduce(x, async_op=True)
        try:
            work.wait(timedelta(milliseconds=200))
        except aliquot.DeadlineExceeded:
            assert not work.is_completed()
        else:
            raise AssertionError("no time-out")
        dist.distributed_c10d._get_default_store().set("timed out", "1")
        work.wait()
    assert x[0] == sum(range(world.size))
    dist.barrier(timeout=timedelta(seconds=20))
    dist.group.WORLD.set_timeout(timedelta(seconds=20))
    dist.all_reduce(x)
    dist.destroy_process_group()
    say("passed")


def killed():
    """Rank 1 dies while the others wait for it."""
    world = begin()
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    store.add("out of the barrier", 1)
    if world.rank == 1:
        while store.add("out of the barrier", 0) < world.size:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    pending = dist.irecv(torch.ones(3), 1)
    error, seconds = failure(dist.all_reduce, torch.ones(5))
    assert error.rank == 1 and seconds < 20, (error, seconds)
    assert failure(pending.wait)[0].rank == 1
    try:
        dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()
    except Exception as again:
        assert "rank 1" in str(again), again
    else:
        raise AssertionError("the future of a dead group succeeded")
    begun = time.monotonic()
    dist.destroy_process_group()
    assert time.monotonic() - begun < 5
    say("passed")


def mismatch():
    world = begin()
    if world.rank == 0:
        error, _ = failure(dist.all_reduce, torch.ones(3))
    else:
        error, _ = failure(dist.all_reduce, torch.ones(4))
    assert isinstance(error, aliquot.RankMismatch), error
    dist.destroy_process_group()
    say("passed")


def other_tag():
    world = begin()
    if world.rank == 0:
        dist.isend(torch.ones(3), 1, tag=7)
        dist.barrier()
    else:
        error, _ = failure(dist.recv, torch.ones(3), 0, tag=8)
        assert isinstance(error, aliquot.RankMismatch) and error.rank == 0
        assert "tag 8" in str(error) and "tag 7" in str(error), error
        dist.barrier()
    dist.destroy_process_group()
    say("passed")


def aborted():
    world = begin()
    group = dist.new_group()
    if world.rank == 0:
        time.sleep(0.3)
        group.abort()
    error, seconds = failure(dist.all_reduce, torch.ones(3), group=group)
    assert seconds < 20 and "abort" in str(error), error
    dist.all_reduce(torch.ones(3))  # the other group lives on
    dist.destroy_process_group()
    say("passed")


def interrupted():
    """Ctrl-C in a collective that waits."""
    world = begin()
    if world.rank == 0:
        say("waits")
        try:
            if os.environ["WAY"] == "later":
                dist.all_reduce(torch.ones(3), async_op=True).wait()
            else:
                dist.all_reduce(torch.ones(3))
        except KeyboardInterrupt:
            say("passed")
            os._exit(0)
        os._exit(3)
    time.sleep(1000)


def interrupted_while_others_join():
    """Ctrl-C while a process group waits for its members."""
    if begin().rank == 0:
        say("waits")
        try:
            dist.new_group()
        except KeyboardInterrupt:
            say("passed")
            os._exit(0)
        os._exit(3)
    time.sleep(1000)


def missing():
    """Rank 1 never calls new_group."""
    world = begin()
    if world.rank == 0:
        try:
            dist.new_group([0, 1], timeout=SOON)
        except FAILURES as error:
            assert error.rank == 1 and "rank 1 did not join" in str(error)
            say("passed")
        os._exit(0)
    dist.distributed_c10d._get_default_store()
    time.sleep(2.5)
    os._exit(0)


def fails():
    """An exception on rank 1: the others do not wait for the time-out."""
    world = begin()
    if world.rank == 1:
        raise ValueError("on purpose")
    error, seconds = failure(dist.all_reduce, torch.ones(3))
    assert error.rank == 1 and seconds < 20, (error, seconds)
    say("passed")


class Faults(Passing):
    def test_late_rank_is_named(self):
        self.passes("late", 3, without=(1,))

    def test_late_rank_at_a_monitored_barrier_is_named(self):
        self.passes("late_barrier", without=(1,))

    def test_a_wait_has_a_time_out_of_its_own(self):
        self.passes("own_timeout")

    def test_killed_rank_is_named(self):
        self.passes("killed", 3, without=(1,))

    def test_different_calls_are_an_error_on_all(self):
        self.passes("mismatch")

    def test_another_tag_is_an_error(self):
        self.passes("other_tag")

    def test_abort_ends_one_group(self):
        self.passes("aborted")

    def test_rank_that_does_not_join_is_named(self):
        self.passes("missing", without=(1,))

    def test_exception_on_one_rank(self):
        self.passes("fails", 2, without=(1,), fresh=True)

    def test_ctrl_c(self):
        for name, way in (("interrupted", "now"), ("interrupted", "later"),
                          ("interrupted_while_others_join", "")):
            with self.subTest(name=name, way=way), \
                    Ranks(2, name, WAY=way) as ranks:
                ranks.until(0, "waits")
                time.sleep(0.7)
                os.kill(ranks.ranks[0].pid, signal.SIGINT)
                self.assertEqual(ranks.ranks[0].wait(30), 0,
                                 "".join(ranks.texts[0]))
                ranks.threads[0].join(5)
                self.assertIn("passed", "".join(ranks.texts[0]))


if __name__ == "__main__":
    distributed_ranks.main(globals())
