"""Collectives on everything that has memory: NumPy, buffers, DLPack, torch."""

import array
import ctypes
import unittest

import numpy as np
import ranks

import aliquot

try:
    import torch
except ImportError:
    torch = None


class Exporter:
    """An object that has nothing but DLPack."""

    def __init__(self, value):
        self.value = value

    def __dlpack__(self, **_):
        return self.value.__dlpack__()

    def __dlpack_device__(self):
        return self.value.__dlpack_device__()


def base(context):
    return np.arange(6.0).reshape(2, 3) * (context.rank + 1)


class Collectives(unittest.TestCase):
    def test_all_reduce(self):
        def body(context):
            source = base(context)
            out = np.empty_like(source)
            context.world.all_reduce(source, out, "max")
            mean = context.world.all_reduce(source.copy(), op="avg")
            summed = context.world.all_reduce(source)
            assert summed is source
            return out, mean, summed

        for out, mean, summed in ranks.run_threads(3, body):
            one = np.arange(6.0).reshape(2, 3)
            np.testing.assert_array_equal(out, one * 3)
            np.testing.assert_allclose(mean, one * 2, rtol=1e-15)
            np.testing.assert_array_equal(summed, one * 6)

    def test_gather_scatter_exchange(self):
        def body(context):
            group, rank = context.world, context.rank
            gathered = group.all_gather(base(context))
            parts = np.arange(6, dtype=np.int32).reshape(3, 2) + 10 * rank
            mine = group.reduce_scatter(parts)
            swapped = group.all_to_all(parts)
            counts = [1, 0, 2]
            some = np.full(counts[rank], rank, np.float32)
            joined = group.all_gather_v(some, np.empty(3, np.float32), counts)
            cut = group.reduce_scatter_v(
                np.arange(3.0), np.empty(counts[rank]), counts)
            return gathered, mine, swapped, joined, cut

        results = ranks.run_threads(3, body)
        whole = np.arange(6, dtype=np.int32).reshape(3, 2)
        for rank, (gathered, mine, swapped, joined, cut) in enumerate(results):
            for other in range(3):
                np.testing.assert_array_equal(
                    gathered[other], np.arange(6.0).reshape(2, 3) * (other + 1))
                np.testing.assert_array_equal(swapped[other],
                                              whole[rank] + 10 * other)
            np.testing.assert_array_equal(mine, whole[rank:rank + 1] * 3 + 30)
            np.testing.assert_array_equal(joined, [0, 2, 2])
            np.testing.assert_array_equal(cut, [[0.0], [], [3.0, 6.0]][rank])

    def test_one_value_where_several_are_wanted(self):
        x = np.ones(3)
        with aliquot.open("single") as context:
            group, mesh = context.world, context.mesh({"dp_shard": np.int64(1)})
            for function, kind, told in (
                    (lambda: group.all_gather_v(x, x, 3), TypeError,
                     "counts=3 is one int; give a list"),
                    (lambda: group.reduce_scatter_v(x, x, "3"), TypeError,
                     "counts='3' is one str; give a list"),
                    (lambda: group.all_gather_v(x, x, [2, 1]), ValueError,
                     "counts has 2 numbers, the group 1 ranks"),
                    (lambda: context.connect(b"blob"), TypeError,
                     "blobs=b'blob' is one bytes; give a list"),
                    (lambda: context.buffer(64).view("u8", "64"), TypeError,
                     "shape='64' is one str; give a list"),
                    (lambda: mesh.group(["dp_shard"]), TypeError,
                     "axes=.* is of type list; give a str"),
                    (lambda: context.mesh(["dp_shard=1"]), TypeError,
                     "mesh=.* is of type list; give a str")):
                with self.assertRaisesRegex(kind, told):
                    function()
            self.assertEqual(mesh.axes, {"dp_shard": 1})
            self.assertEqual(context.mesh(" dp_replicate=1, dp_shard=-1").axes,
                             {"dp_replicate": 1, "dp_shard": 1})
            self.assertEqual(context.mesh({"dp_shard": 2 / 2}).axes,
                             {"dp_shard": 1})

            def broken():
                yield 3
                raise TypeError("of the caller")

            with self.assertRaisesRegex(TypeError, "^of the caller$"):
                group.all_gather_v(x, x, broken())
            group.all_gather_v(x, x, (ctypes.c_int64 * 1)(3))

    def test_point_to_point_and_async(self):
        def body(context):
            group, rank = context.world, context.rank
            out = np.empty(4, np.int64)
            if rank == 0:
                group.send(np.arange(4), 1)
            else:
                group.recv(out, 0)
            stream = context.stream()
            works = [group.all_reduce(np.full(5, rank + i), stream=stream)
                     for i in range(3)]
            sums = [work.result() for work in works]
            assert all(work.done for work in works)
            group.broadcast(out, 1, stream=stream)
            place = stream.event()
            place.synchronize(30)
            stream.synchronize(30)
            assert place.done
            group.barrier()
            return out, sums

        for out, sums in ranks.run_threads(2, body):
            np.testing.assert_array_equal(out, np.arange(4))
            for i, value in enumerate(sums):
                np.testing.assert_array_equal(value, np.full(5, 2 * i + 1))

    def test_split_and_mesh(self):
        def body(context):
            odd = context.world.split(context.rank % 2, -context.rank, "odd")
            value = odd.all_gather(np.array([context.rank]))
            none = context.world.split(-1 if context.rank else 0)
            mesh = context.mesh({"dp_replicate": 2, "dp_shard": -1})
            assert list(mesh.axes.items()) == [("dp_replicate", 2),
                                               ("dp_shard", context.size // 2)]
            assert context.mesh().axes == {"dp_shard": context.size}
            shard = mesh.group("dp_shard")
            assert shard is mesh.group("dp_shard")
            assert mesh.ranks("dp_shard", context.rank) == shard.ranks
            return (value.ravel().tolist(), none is None,
                    mesh.axis_size("dp_shard"), mesh.coordinate("dp_replicate"),
                    shard.ranks)

        for rank, got in enumerate(ranks.run_threads(4, body)):
            odd = rank % 2
            self.assertEqual(got, ([2 + odd, odd], rank > 0, 2, rank // 2,
                                   [rank // 2 * 2, rank // 2 * 2 + 1]))


class Memory(unittest.TestCase):
    """One rank is enough: the sum is the value, the address the same."""

    def setUp(self):
        self.context = aliquot.open("single")
        self.addCleanup(self.context.close)

    def test_buffers(self):
        group = self.context.world
        values = array.array("d", [1.5, 2.5])
        self.assertIs(group.all_reduce(values), values)
        out = bytearray(3)
        group.all_reduce(b"abc", out)
        self.assertEqual(out, b"abc")
        view = memoryview(np.arange(6, dtype=np.int16))
        target = np.zeros(6, np.int16)
        group.all_reduce(view, target)
        np.testing.assert_array_equal(target, np.arange(6))
        with self.assertRaisesRegex(ValueError, "read-only"):
            group.all_reduce(b"abc")
        with self.assertRaisesRegex(ValueError, "not contiguous"):
            group.all_reduce(view[::2], target[:3])

    def test_numpy_refusals(self):
        group = self.context.world
        for value, problem in [
                (np.arange(6.0)[::2], "not contiguous"),
                (np.arange(6.0).reshape(2, 3).T, "not contiguous"),
                (np.arange(3, dtype=">f8"), "not an element type"),
                (np.zeros(2, np.complex64), "not an element type"),
                ("text", "has no memory"), (7, "has no memory")]:
            with self.assertRaisesRegex((TypeError, ValueError), problem):
                group.all_reduce(value)
        frozen = np.arange(3.0)
        frozen.flags.writeable = False
        with self.assertRaisesRegex(ValueError, "read-only"):
            group.all_reduce(frozen)
        with self.assertRaisesRegex(TypeError, "f64.*f32"):
            group.all_reduce(np.zeros(3), np.zeros(3, np.float32))
        with self.assertRaisesRegex(ValueError, "holds 2 elements.*moves 3"):
            group.all_reduce(np.zeros(3), np.zeros(2))
        with self.assertRaisesRegex(ValueError, "'mean'.*sum, avg"):
            group.all_reduce(np.zeros(3), op="mean")

    def test_empty_and_scalar_arrays(self):
        group = self.context.world
        self.assertEqual(group.all_reduce(np.zeros((0, 3))).shape, (0, 3))
        scalar = np.array(2.5)
        self.assertEqual(group.all_reduce(scalar), 2.5)
        self.assertEqual(group.all_gather(scalar).shape, (1,))

    def test_dlpack(self):
        target = np.zeros(4)
        self.context.world.all_reduce(Exporter(np.arange(4.0)), target)
        np.testing.assert_array_equal(target, np.arange(4.0))
        self.context.world.all_reduce(target, Exporter(target))
        with self.assertRaisesRegex(ValueError, "not contiguous"):
            self.context.world.all_reduce(Exporter(np.arange(4.0)[::2]),
                                          target[:2])

    def test_shared_buffer(self):
        buffer = self.context.buffer(64)
        view = buffer.view("f32", (2, 4), offset=32)
        view[:] = np.arange(8).reshape(2, 4)
        self.context.world.all_reduce(view)
        np.testing.assert_array_equal(
            np.asarray(buffer)[32:].view(np.float32), np.arange(8))
        self.assertEqual(buffer.view("bf16").itemsize, 2)
        del buffer
        view += 1  # the view keeps the memory
        self.assertEqual(view[1, 3], 8)
        with self.assertRaisesRegex(ValueError, "do not fit into 64 bytes"):
            self.context.buffer(64).view("f64", 9)

    @unittest.skipIf(torch is None, "no torch")
    def test_torch(self):
        group = self.context.world
        for dtype in (torch.float64, torch.bfloat16, torch.float16, torch.bool,
                      torch.int64, torch.uint8):
            value = torch.arange(3).to(dtype)
            if dtype is torch.bool:
                got = group.all_gather(value)[0]
            else:
                got = group.all_reduce(value)
            self.assertTrue(torch.equal(got, torch.arange(3).to(dtype)))
        weight = torch.nn.Parameter(torch.ones(2, 2))
        group.all_reduce(weight)
        with self.assertRaisesRegex(ValueError, "not contiguous"):
            group.all_reduce(torch.ones(2, 3).T)
        with self.assertRaisesRegex(ValueError, "lies on meta"):
            group.all_reduce(torch.ones(2, device="meta"))


if __name__ == "__main__":
    ranks.main(globals())
