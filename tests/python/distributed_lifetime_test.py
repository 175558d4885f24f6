"""The life of process groups of the backend aliquot: how they begin and end, and
what their members see when one is late, dead, interrupted or calls another
operation."""

import os
import signal
import subprocess
import sys
import time
import unittest
from datetime import timedelta

import distributed_ranks
from distributed_ranks import Ranks, begin

import torch
import torch.distributed as dist

import aliquot

SOON = timedelta(seconds=1.5)
FAILURES = (dist.DistBackendError, aliquot.Error)


def say(*what):
    print(*what, flush=True)


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


# ------------------------------------------------------------------- the ranks


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
    if world.rank == 1:
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


def no_destroy():
    """A program that just ends, as scripts do."""
    world = begin()
    dist.new_group()
    for _ in range(5):
        dist.all_reduce(torch.ones(3))
    if world.rank == 1:
        time.sleep(0.5)
    dist.barrier()
    say("passed")


def fails():
    """An exception on rank 1: the others do not wait for the time-out."""
    world = begin()
    if world.rank == 1:
        raise ValueError("on purpose")
    error, seconds = failure(dist.all_reduce, torch.ones(3))
    assert error.rank == 1 and seconds < 20, (error, seconds)
    say("passed")


def beside_gloo():
    world = begin("cpu:aliquot")
    assert "aliquot" in dist.get_backend_config()
    gloo = dist.new_group(backend="gloo")
    ours = dist.new_group(backend="aliquot")
    local = dist.new_group([world.rank], use_local_synchronization=True)
    for group in (None, gloo, ours):
        x = torch.full((3,), world.rank + 1.0)
        dist.all_reduce(x, group=group)
        assert x[0] == sum(range(1, world.size + 1))
    x = torch.ones(2)
    dist.all_reduce(x, group=local)
    assert x[0] == 1 and dist.get_backend(gloo) == "gloo"
    assert dist.get_backend(ours) == "aliquot"
    dist.destroy_process_group(ours)
    try:
        dist.all_reduce(x, group=ours)
    except Exception as error:
        assert "destroyed" in str(error) or "not" in str(error)
    dist.destroy_process_group()
    begin("gloo")
    group = dist.new_group(backend="aliquot")
    x = torch.ones(2)
    dist.all_reduce(x, group=group)
    assert x[0] == world.size
    dist.destroy_process_group()
    say("passed")


def by_file():
    url = "file://" + os.environ["PLACE"]
    options = dict(init_method=url, rank=int(os.environ["RANK"]),
                   world_size=int(os.environ["WORLD_SIZE"]))
    world = begin(**options)
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x[0] == world.size
    dist.destroy_process_group()
    say("passed")


def counts():
    """Threads, open files and mappings of this process."""
    with open("/proc/self/maps") as maps:
        return (len(os.listdir("/proc/self/task")),
                len(os.listdir("/proc/self/fd")), len(maps.readlines()))


def cycles():
    """Groups come and go without leaving threads, files or mappings."""
    world = begin()

    def once():
        group = dist.new_group()
        x = torch.ones(10)
        dist.all_reduce(x, group=group)
        dist.all_reduce(x, group=group, async_op=True).get_future().wait()
        dist.destroy_process_group(group)

    for _ in range(3):
        once()
    dist.barrier()
    before = [count + slack for count, slack in zip(counts(), (0, 0, 20))]
    for _ in range(30):
        once()
    dist.barrier()
    after = counts()
    assert all(a <= b for a, b in zip(after, before)), (after, before)
    dist.destroy_process_group()
    for _ in range(3):
        begin()
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == world.size
        dist.destroy_process_group()
    say("passed")


def forked():
    """A fork of a rank neither disturbs it nor uses its group."""
    world = begin()
    dist.all_reduce(torch.ones(3), async_op=True).wait()
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(3))
        except RuntimeError:
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x[0] == world.size
    dist.destroy_process_group()
    say("passed")


def by_torchrun():
    world = begin()
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x[0] == world.size == 2
    dist.destroy_process_group()
    say("passed")


def alone():
    begin()
    x = torch.arange(4.0)
    dist.all_reduce(x, async_op=True).wait()
    out = torch.empty(4)
    dist.reduce_scatter_tensor(out, x)
    assert torch.equal(out, torch.arange(4.0))
    dist.destroy_process_group()
    say("passed")


def progress_thread():
    """With the library's own thread, whatever the machine is like."""
    from aliquot.torch.distributed import Options
    before = len(os.listdir("/proc/self/task"))
    world = begin(pg_options=Options(progress=True))
    names = [open("/proc/self/task/%s/comm" % t).read().strip()
             for t in os.listdir("/proc/self/task")]
    assert "alq-progress" in names, (before, names)
    tensors = [torch.full((1000 * i,), world.rank + 1.0) for i in range(50)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    for i, work in enumerate(works):
        work.get_future().wait() if i % 2 else work.wait()
    for t in tensors[1:]:
        assert t[0] == t[-1] == sum(range(1, world.size + 1))
    dist.destroy_process_group()
    say("passed")


def dropped_while_it_runs():
    """A group is destroyed, and another made, while the helper looks at them."""
    world = begin()
    for i in range(15):
        group = dist.new_group()
        for n in (10, 100000):
            dist.all_reduce(torch.ones(n), group=group, async_op=True)
        work = dist.all_reduce(torch.ones(5), group=group, async_op=True)
        future = work.get_future()
        if i % 2:
            future.wait()
        dist.destroy_process_group(group)
        assert future.wait()[0][0] == world.size
    dist.destroy_process_group()
    say("passed")


# ------------------------------------------------------------------- the tests


class Life(unittest.TestCase):
    def passes(self, name, size=2, without=(), **variables):
        with Ranks(size, name, **variables) as ranks:
            for rank, (status, text) in enumerate(ranks.outcomes(120)):
                if rank in without:
                    continue
                self.assertEqual(status, 0, text)
                self.assertIn("passed", text)
        return ranks

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

    def test_end_without_destroy(self):
        self.passes("no_destroy", 3, fresh=True)

    def test_exception_on_one_rank(self):
        self.passes("fails", 3, without=(1,), fresh=True)

    def test_beside_gloo_and_with_subgroups(self):
        self.passes("beside_gloo")

    def test_file_store(self):
        with distributed_ranks.scratch() as folder:
            self.passes("by_file", PLACE=os.path.join(folder, "store"))

    def test_torchrun(self):
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone",
             "--nproc-per-node", "2", os.path.abspath(__file__), "--rank",
             "by_torchrun"], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("passed"), 2, done.stdout)

    def test_one_rank(self):
        self.passes("alone", 1)

    def test_progress_thread(self):
        self.passes("progress_thread")

    def test_groups_end_while_operations_run(self):
        self.passes("dropped_while_it_runs")

    def test_groups_leave_nothing_behind(self):
        self.passes("cycles")

    def test_fork(self):
        self.passes("forked")

    def test_ctrl_c(self):
        for name, way in (("interrupted", "now"), ("interrupted", "later"),
                          ("interrupted_while_others_join", "")):
            with self.subTest(name=name, way=way), \
                    Ranks(2, name, fresh=True, WAY=way) as ranks:
                ranks.until(0, "waits")
                time.sleep(0.7)
                ranks.ranks[0].send_signal(signal.SIGINT)
                self.assertEqual(ranks.ranks[0].wait(30), 0,
                                 "".join(ranks.texts[0]))
                ranks.threads[0].join(5)
                self.assertIn("passed", "".join(ranks.texts[0]))


if __name__ == "__main__":
    distributed_ranks.main(globals())
