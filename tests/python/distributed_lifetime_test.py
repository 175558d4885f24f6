"""How process groups of the backend aliquot begin and end, beside one another
and beside those of other backends."""

import os
import subprocess
import sys
import time

import distributed_ranks
from distributed_ranks import Passing, begin, end_for_another, say

import torch
import torch.distributed as dist


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
    end_for_another()
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
    end = time.monotonic() + 20
    after = counts()
    while after[0] > before[0] and time.monotonic() < end:
        time.sleep(0.01)  # a thread that was joined takes a moment to go
        after = counts()
    assert all(a <= b for a, b in zip(after, before)), (after, before)
    for _ in range(3):
        end_for_another()
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
    """A group is destroyed, and another made, while the runner looks on."""
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


class Life(Passing):
    def test_end_without_destroy(self):
        self.passes("no_destroy", 2, fresh=True)

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


if __name__ == "__main__":
    distributed_ranks.main(globals())
