"""Errors, ends of life, forks, signals: nothing hangs, crashes or leaks."""

import gc
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

import numpy as np
import ranks

import aliquot
from aliquot import _command


def task_count():
    return len(os.listdir("/proc/self/task"))


def resources():
    """Descriptors and mappings of shared memory of this process."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        mapped = sum("memfd:" in line or "/dev/shm" in line for line in maps)
    return len(os.listdir("/proc/self/fd")), mapped


def resident_kb():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4


def settled(read, want, seconds=20):
    """read() once it is at most want, or at the deadline."""
    deadline = time.monotonic() + seconds
    while read() > want and time.monotonic() < deadline:
        time.sleep(0.01)
    return read()


class Errors(unittest.TestCase):
    def test_fields_and_classes(self):
        def body(context):
            if context.rank == 1:
                context.world.all_reduce(np.zeros(3))
            context.world.all_reduce(np.zeros(4))

        with self.assertRaises(AssertionError) as caught:
            ranks.run_threads(2, body)
        error = caught.exception.__cause__
        self.assertIsInstance(error, aliquot.RankMismatch)
        self.assertEqual(error.name, "ALQ_RANK_MISMATCH")
        self.assertIn("3", error.message)
        self.assertEqual(str(error), error.message)  # the class has the name
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((again.code, again.rank, again.message),
                         (error.code, error.rank, error.message))

    def test_python_classes(self):
        with self.assertRaises(ValueError) as caught:
            aliquot.open("single").mesh("dp_shard=3")
        self.assertIsInstance(caught.exception, aliquot.InvalidArgument)
        started = time.monotonic()
        with self.assertRaises(TimeoutError) as caught:
            aliquot.open("local", rank=0, world_size=2, timeout=0.3,
                         world_name="alone-%d" % os.getpid())
        self.assertLess(time.monotonic() - started, 30)
        self.assertIsInstance(caught.exception, aliquot.DeadlineExceeded)
        for raised in (caught.exception, aliquot.PermissionDenied("a file"),
                       aliquot.NotFound("a key")):
            self.assertEqual(str(raised), raised.message)  # as Error's own
        with self.assertRaises(NotImplementedError):
            aliquot.open("single").mesh().group("dp_shard")
            raise aliquot.Unsupported("declared only")

    def test_unknown_names(self):
        with self.assertRaisesRegex(ValueError, "'carrier'.*known are 'auto'"):
            aliquot.open("carrier")
        with self.assertRaises(aliquot.InvalidArgument):
            aliquot.open("single", hints={"no_such_key": 1})

    def test_abort_wakes_peers(self):
        def body(context):
            if context.rank == 0:
                context.world.abort("enough")
            with self.assertRaises(aliquot.Error) as caught:
                context.world.barrier()
                context.world.barrier()
            self.assertRaises(aliquot.Error, context.world.check)
            return str(caught.exception)

        with self.assertRaises(AssertionError):  # close tells of it as well
            ranks.run_threads(2, body)

    def test_exception_in_block_is_told_to_peers(self):
        def body(context):
            if context.rank == 1:
                raise ArithmeticError("a bad batch")
            with self.assertRaisesRegex(
                    ConnectionError, "rank 1: ArithmeticError: a bad batch"):
                context.world.barrier()
            raise KeyError("seen")

        started = time.monotonic()
        with self.assertRaisesRegex(AssertionError, "ArithmeticError|seen"):
            ranks.run_threads(2, body)
        self.assertLess(time.monotonic() - started, 30)


class Command(unittest.TestCase):
    def test_libraries_of_wheels_are_found(self):
        with tempfile.TemporaryDirectory() as site:
            folders = [os.path.join(site, *parts) for parts in (
                ("nvidia", "cu13", "lib"), ("nvidia", "nccl", "lib"),
                ("libucx_cu12", "lib"))]
            for folder in folders + [os.path.join(site, "other", "lib")]:
                os.makedirs(folder)
            with unittest.mock.patch.object(sys, "path", [site]):
                self.assertEqual(_command.wheel_folders(), folders)


class Lifetimes(unittest.TestCase):
    def test_any_order(self):
        context = aliquot.open("single")
        world, buffer = context.world, context.buffer(4096)
        mesh, stream = context.mesh(), context.stream()
        engine = aliquot.Engine(mesh)
        work = world.all_reduce(np.zeros(4), stream=stream)
        for thing in (context, mesh, world, stream, buffer, engine, work):
            thing.release()
            thing.release()
            self.assertTrue(thing.closed)
        for call in (lambda: context.rank, world.barrier, engine.plan_text,
                     work.wait, buffer.view):
            self.assertRaisesRegex(aliquot.FailedPrecondition, "is closed",
                                   call)

    def test_children_keep_the_context(self):
        world = aliquot.open("single").world
        gc.collect()
        self.assertEqual(world.all_reduce(np.ones(1))[0], 1)

    def test_close_twice(self):
        context = aliquot.open("single")
        context.close()
        context.close()

    def test_several_contexts_and_threads(self):
        def body(context):
            with aliquot.open("single") as mine:
                value = mine.world.all_reduce(np.full(2, context.rank + 1.0))
                group = context.world.split(0)
                for _ in range(50):
                    group.all_reduce(np.zeros(8))
                return context.world.all_reduce(value)[0]

        self.assertEqual(ranks.run_threads(3, body), [6.0] * 3)

    def test_a_group_used_by_threads_in_turn(self):
        def body(context):
            total, failures = np.zeros(1), []

            def turn():
                try:
                    context.world.all_reduce(total)
                except aliquot.Error as error:
                    failures.append(error)

            for i in range(4):
                total[:] = context.rank + i
                thread = threading.Thread(target=turn)
                thread.start()
                thread.join(ranks.TIMEOUT_S)
            return failures, total[0]

        self.assertEqual(ranks.run_threads(2, body), [([], 7.0)] * 2)

    def test_a_thousand_cycles(self):
        def cycle(i):
            context = aliquot.open("single")
            engine = aliquot.Engine(context.mesh(), "cycle")
            stream = context.stream()
            context.world.all_reduce(np.zeros(4), stream=stream).wait()
            context.buffer(4096).view()
            if i % 3 == 0:
                engine.close()
                context.close()
            elif i % 3 == 1:
                context.release()

        for i in range(50):
            cycle(i)
        gc.collect()
        tasks, memory = task_count(), resident_kb()
        files, mapped = resources()
        for i in range(1000):
            cycle(i)
        gc.collect()
        self.assertLessEqual(settled(task_count, tasks), tasks)
        self.assertLessEqual(settled(lambda: resources()[0], files), files)
        self.assertLessEqual(settled(lambda: resources()[1], mapped), mapped)
        self.assertLess(resident_kb() - memory, 16 << 10)

    def test_cycles_of_two_ranks(self):
        def body(context):
            return context.world.all_reduce(np.ones(1))[0]

        for i in range(5):
            ranks.run_threads(2, body)
        before = resources(), task_count()
        for i in range(100):
            self.assertEqual(ranks.run_threads(2, body), [2.0, 2.0])
        self.assertLessEqual(settled(lambda: resources()[0], before[0][0]),
                             before[0][0])
        self.assertLessEqual(settled(task_count, before[1]), before[1])

    def test_exit_without_close(self):
        """Garbage of all kinds at the interpreter's end, in a cycle."""
        code = ("import aliquot, numpy as np, threading\n"
                "c = aliquot.open('single'); w = c.world; m = c.mesh()\n"
                "e = aliquot.Engine(m); b = c.buffer(64).view('f32')\n"
                "s = c.stream(); k = w.all_reduce(b, stream=s)\n"
                "w.barrier()\n"
                "c.self = c; m.loop = [m, e, k, b]\n"
                "print('end')\n")
        run = ranks.run_code(code)
        self.assertEqual((run.returncode, run.stdout, run.stderr),
                         (0, "end\n", ""))


class Forks(unittest.TestCase):
    def child(self, body):
        """The exit status of a forked child that runs body()."""
        pid = os.fork()
        if pid == 0:
            try:
                os._exit(body() or 0)
            except BaseException as error:  # the parent sees the status
                os.write(2, repr(error).encode() + b"\n")
                os._exit(99)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return "hangs"

    def test_parents_handles_are_refused(self):
        context = aliquot.open("single")
        world = context.world
        world.barrier()

        def use():
            try:
                world.all_reduce(np.zeros(3))
            except aliquot.FailedPrecondition as error:
                return 7 if "fork" in str(error) else 8
            return 9

        self.assertEqual(self.child(use), 7)
        self.assertEqual(world.all_reduce(np.ones(3))[0], 1)
        context.close()

    def test_release_and_collection_in_the_child(self):
        context = aliquot.open("single")
        held = [context.world, context.mesh(), context.buffer(64)]

        def drop():
            nonlocal context, held
            held[2].release()
            context = held = None
            gc.collect()

        self.assertEqual(self.child(drop), 0)
        self.assertEqual(held[0].all_reduce(np.ones(3))[0], 1)

    def test_own_context_in_the_child(self):
        with aliquot.open("single") as context:
            context.world.barrier()

            def own():
                with aliquot.open("single") as mine:
                    value = mine.world.all_reduce(np.ones(2))
                    return 0 if value[1] == 1 else 1

            self.assertEqual(self.child(own), 0)

    def test_interrupted_child_leaves_the_parent_alone(self):
        with aliquot.open("single") as context:
            context.world.barrier()

            def interrupted():
                try:
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(5)
                except KeyboardInterrupt:
                    return 5

            self.assertEqual(self.child(interrupted), 5)
            time.sleep(0.2)
            context.world.barrier()


if __name__ == "__main__":
    ranks.main(globals())
