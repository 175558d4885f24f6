"""alq_open and CUDA: not touched for the CPU, and refused with reasons.

A process of its own opens each case, so that what one loads is not seen by
another.  The stand-ins give a CUDA device where none is.

Usage: cuda_test.py LIBRARY DOUBLES IMAGE
"""

import ctypes
import json
import os
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bindings", "python"))
sys.dont_write_bytecode = True

from aliquot import _ffi  # noqa: E402

LIBRARY, DOUBLES, IMAGE = sys.argv[1:4]
CUDA = _ffi.ALQ_DEVICE_CUDA
HAS_DRIVER = os.path.exists("/dev/nvidiactl")


def text_of(lib, ctx):
    need = ctypes.c_size_t()
    lib.alq_runtime_info(ctx, None, 0, ctypes.byref(need), None)
    buffer = ctypes.create_string_buffer(need.value)
    lib.alq_runtime_info(ctx, buffer, need.value, ctypes.byref(need), None)
    return buffer.value.decode()


def use_streams(lib, ctx, handle_of_null):
    """A stream, an event and a buffer, through the ABI."""
    error = _ffi.alq_error(struct_size=ctypes.sizeof(_ffi.alq_error))
    err = ctypes.byref(error)
    stream = _ffi.alq_stream()
    event, buffer = ctypes.c_void_p(), ctypes.c_void_p()
    codes = [
        lib.alq_stream_create(ctx, ctypes.byref(stream), err),
        lib.alq_event_create(ctx, ctypes.byref(event), err),
        lib.alq_buffer_alloc(ctx, 4096, ctypes.byref(buffer), err),
        lib.alq_event_record(event, ctypes.byref(stream), err),
        lib.alq_event_wait(event, ctypes.byref(stream), err),
        lib.alq_event_sync(event, 10**10, err),
        lib.alq_stream_sync(ctx, ctypes.byref(stream), 10**10, err)]
    null = _ffi.alq_stream(device_type=CUDA, device_id=stream.device_id,
                           handle=handle_of_null)
    refused = lib.alq_stream_sync(ctx, ctypes.byref(null), 10**10, err)
    lib.alq_event_release(event)
    lib.alq_buffer_release(buffer)
    lib.alq_stream_release(ctx, ctypes.byref(stream))
    return {"codes": codes, "refused": refused,
            "why": error.message.decode(), "type": stream.device_type}


def case(device_type, device_id, hints):
    """Opens in this process and tells what came of it."""
    lib = _ffi.load(LIBRARY)
    desc = _ffi.alq_open_desc(
        struct_size=ctypes.sizeof(_ffi.alq_open_desc),
        bootstrap=_ffi.ALQ_BOOTSTRAP_SINGLE, timeout_ns=2 * 10**10,
        device_type=device_type, device_id=device_id, hints=hints.encode())
    error = _ffi.alq_error(struct_size=ctypes.sizeof(_ffi.alq_error))
    ctx = ctypes.c_void_p()
    code = lib.alq_open(_ffi.ALQ_ABI_VERSION, ctypes.byref(desc),
                        ctypes.byref(ctx), ctypes.byref(error))
    told = {"code": code, "message": error.message.decode(),
            "has": lib.alq_has(b"device.cuda")}
    if code == 0:
        told["info"] = json.loads(text_of(lib, ctx))
        if device_type == CUDA:
            told["streams"] = use_streams(lib, ctx, None)
        told["close"] = lib.alq_close(ctx, 0, None)
        lib.alq_release(ctx)
    with open("/proc/self/maps", encoding="ascii") as maps:
        told["mapped"] = sorted({
            line.split()[-1] for line in maps
            if any(name in line for name in ("libcuda", "libnccl",
                                             "libcublas", "libnv"))})
    print(json.dumps(told))


def opened(device_type=0, device_id=0, hints="", env=None):
    run = subprocess.run(
        [sys.executable, "-B", __file__, LIBRARY, DOUBLES, IMAGE, "case",
         str(device_type), str(device_id), hints],
        capture_output=True, text=True, timeout=60,
        env={**os.environ, **(env or {})})
    if run.returncode != 0:
        raise AssertionError(f"rc {run.returncode}: {run.stderr}")
    return json.loads(run.stdout)


def doubles(**more):
    hints = {"cuda_library": f"{DOUBLES}/libcuda.so.1",
             "nccl_library": f"{DOUBLES}/libnccl.so.2",
             "cuda_image": IMAGE, **more}
    return ";".join(f"{k}={v}" for k, v in hints.items())


class Cuda(unittest.TestCase):
    def test_cpu_touches_no_cuda_library(self):
        told = opened()
        self.assertEqual(told["code"], 0, told["message"])
        self.assertEqual(told["mapped"], [])
        self.assertEqual(told["info"]["device"], "cpu")
        self.assertEqual(told["info"]["libraries"], [])

    @unittest.skipIf(HAS_DRIVER, "there is a driver here")
    def test_without_driver_says_what_was_tried(self):
        told = opened(CUDA)
        self.assertEqual(told["code"], _ffi.ALQ_UNAVAILABLE)
        for part in ("process libcuda.so.1", "system libcuda.so.1",
                     "cannot open shared object", "device_type CPU"):
            self.assertIn(part, told["message"])
        if not told["has"]:
            self.assertIn("built without nvcc", told["message"])

    def test_bad_path_is_named(self):
        told = opened(CUDA, 0, "cuda_library=/nowhere/libcuda.so.1")
        self.assertEqual(told["code"], _ffi.ALQ_UNAVAILABLE)
        self.assertIn("/nowhere/libcuda.so.1", told["message"])

    def test_no_image_is_named(self):
        told = opened(CUDA, 0, doubles(cuda_image="/nowhere/kernels"))
        self.assertEqual(told["code"], _ffi.ALQ_NOT_FOUND)
        self.assertIn("/nowhere/kernels", told["message"])

    def test_bad_devices_are_refused(self):
        for device_type, device_id in ((0, 1), (1, -1), (CUDA, -1), (3, 0),
                                       (-1, 0), (CUDA, 64)):
            told = opened(device_type, device_id, doubles())
            self.assertEqual(told["code"], _ffi.ALQ_INVALID_ARGUMENT,
                             (device_type, device_id, told))
        self.assertIn("64", told["message"])

    def test_no_nccl_is_named(self):
        told = opened(CUDA, 0, doubles(nccl_library="/nowhere/libnccl.so.2"))
        self.assertEqual(told["code"], _ffi.ALQ_UNAVAILABLE)
        self.assertIn("NCCL", told["message"])

    def check_opened(self, told):
        self.assertEqual(told["code"], 0, told["message"])
        info = told["info"]
        self.assertEqual((info["device"], info["backend"]), ("cuda", "nccl"))
        self.assertEqual(info["cuda"]["name"], "double (host memory)")
        self.assertEqual(info["cuda"]["driver"], "13.0")
        found = {item["name"]: item for item in info["libraries"]}
        self.assertEqual(found["cuda"]["how"], "override")
        streams = told["streams"]
        self.assertEqual(streams["codes"], [0] * 7)
        self.assertEqual(streams["type"], CUDA)
        self.assertEqual(streams["refused"], _ffi.ALQ_INVALID_ARGUMENT)
        self.assertIn("ambiguous", streams["why"])
        self.assertEqual(told["close"], 0)

    def test_opens_over_the_stand_ins(self):
        self.check_opened(opened(CUDA, 1, doubles()))

    def test_hints_from_the_environment(self):
        self.check_opened(opened(CUDA, 0, env={"ALIQUOT_HINTS": doubles()}))


if __name__ == "__main__":
    if sys.argv[4:5] == ["case"]:
        case(int(sys.argv[5]), int(sys.argv[6]), sys.argv[7])
    else:
        unittest.main(argv=sys.argv[:1])
