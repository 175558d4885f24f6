"""gpt --device cuda over the stand-ins for driver, NCCL and cuBLAS, against
--device cpu: the same training, up to the order of sums.  The kernels are the
real sources, compiled for the host; nothing here says how a GPU performs.

Usage: cuda_test.py GPT ALIQUOT DOUBLES IMAGE
"""
import os
import sys
import unittest

from runs import TINY, Workplace

DOUBLES, IMAGE = os.path.abspath(sys.argv[3]), os.path.abspath(sys.argv[4])
HAS_DRIVER = os.path.exists("/dev/nvidiactl")
KERNELS = ["embed", "embed_backward", "rmsnorm", "rmsnorm_backward",
           "rmsnorm_weight", "rope", "swiglu", "swiglu_backward", "attention",
           "attention_rows", "attention_columns", "loss", "loss_backward",
           "put"]
STEPS = ["--steps", "4", "--global-batch", "8", "--eval-batches", "3",
         "--eval-every", "2"]


def stand_ins(seed=1, **other):
    """The environment in which --device cuda finds them."""
    hints = {"cuda_library": f"{DOUBLES}/libcuda.so.1",
             "nccl_library": f"{DOUBLES}/libnccl.so.2",
             "cublas_library": f"{DOUBLES}/libcublas.so.13",
             "cuda_image": IMAGE, **other}
    return {"ALIQUOT_HINTS": ";".join(f"{k}={v}" for k, v in hints.items()),
            "ALIQUOT_DOUBLE_KERNELS": f"{DOUBLES}/gpt_kernels.so",
            "ALIQUOT_DOUBLE_DELAY_US": "20",
            "ALIQUOT_DOUBLE_SEED": str(seed),
            "GPT_CUDA_IMAGE": IMAGE}


class Cuda(unittest.TestCase):
    def setUp(self):
        self.place = Workplace()
        self.addCleanup(self.place.cleanup)

    def check_equal(self, cpu, cuda, tolerance):
        self.assertEqual(len(cpu), len(cuda))
        for a, b in zip(cpu, cuda):
            for key in ("loss", "grad_norm", "held_out"):
                self.assertEqual(key in a, key in b)
                if key in a:
                    self.assertLessEqual(abs(a[key] - b[key]),
                                         tolerance * abs(a[key]), (key, a, b))

    def compare(self, args, tolerance, ranks=2, how="threads", seed=1):
        args = [*STEPS, *args]
        cpu = self.place.train(args, ranks, how)
        cuda = self.place.train([*args, "--device", "cuda"], ranks, how,
                                stand_ins(seed))
        self.assertGreater(cpu[0]["loss"], 5)
        self.check_equal(cpu, cuda, tolerance)
        return cuda

    def test_one_rank_f32(self):
        self.compare([], 1e-5, 1, "alone")

    def test_fsdp_f32(self):
        self.compare(["--strategy", "fsdp"], 1e-5)

    def test_ddp_f32(self):
        self.compare(["--strategy", "ddp"], 1e-5)

    def test_processes(self):
        self.compare(["--strategy", "fsdp"], 1e-5, how="processes")

    def test_f64(self):
        self.compare(["--strategy", "fsdp", "--dtype", "f64"], 1e-12)

    def test_bf16(self):
        """Products are rounded to bf16 at other places."""
        self.compare(["--strategy", "zero2", "--dtype", "bf16"], 5e-3)

    def test_tied_and_recomputed(self):
        self.compare(["--strategy", "fsdp", "--tied", "--checkpoint", "block",
                      "--dtype", "f64", "--accumulate", "fast"], 1e-12)

    def test_schedules_leave_no_trace(self):
        """Equal bits, however streams are delayed and threads ordered."""
        args = [*STEPS, "--strategy", "fsdp", "--device", "cuda"]
        hashes = {self.place.train(args, 2, "threads", stand_ins(seed))[-1]
                  ["hash"] for seed in range(1, 5)}
        self.assertEqual(len(hashes), 1)

    def test_a_lost_launch_is_seen(self):
        """Of each kernel of the model."""
        args = [*STEPS, "--dtype", "f64"]
        cpu = self.place.train(args)
        for kernel in KERNELS:
            env = stand_ins()
            env["ALIQUOT_DOUBLE_MUTATE"] = (
                f"name=gpt_{kernel}_f64,drop_launch:2")
            cuda = self.place.train([*args, "--device", "cuda"], env=env)
            with self.subTest(kernel), self.assertRaises(
                    (AssertionError, TypeError)):  # TypeError: null for a NaN
                self.check_equal(cpu, cuda, 1e-12)

    def refused(self, env, *parts):
        code, _, err = self.place.call(
            [*TINY, "--data", self.place.text, "--device", "cuda"], env=env)
        self.assertEqual(code, 1, err)
        for part in parts:
            self.assertIn(part, err)

    @unittest.skipIf(HAS_DRIVER, "there is a driver here")
    def test_without_driver_says_what_was_tried(self):
        self.refused(None, "UNAVAILABLE", "libcuda.so.1")

    def test_without_cublas_says_what_was_tried(self):
        self.refused(stand_ins(cublas_library="/nowhere/libcublas.so.13"),
                     "UNAVAILABLE", "cuBLAS", "/nowhere/libcublas.so.13")

    def test_missing_kernels_are_named(self):
        env = stand_ins()
        env["ALIQUOT_DOUBLE_KERNELS"] = f"{DOUBLES}/libcublas.so.13"
        self.refused(env, "gpt_embed_f64", "NOT_FOUND")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
