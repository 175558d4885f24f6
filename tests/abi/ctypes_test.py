"""The generated ctypes module agrees with the library.

Usage: ctypes_test.py LIBRARY
"""

import ctypes
import json
import os
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bindings", "python"))
sys.dont_write_bytecode = True

from aliquot import _ffi  # noqa: E402

LIBRARY = sys.argv[1]


class Bindings(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.lib = _ffi.load(LIBRARY)

    def test_layout_of_every_struct(self):
        theirs = json.loads(self.lib.alq_layout())
        mine = {s.__name__: {
            "size": ctypes.sizeof(s),
            "fields": {name: {"offset": getattr(s, name).offset,
                              "size": getattr(s, name).size}
                       for name, _ in s._fields_}}
            for s in _ffi.STRUCTS}
        self.assertEqual(theirs, mine)

    def test_a_different_layout_is_refused(self):
        class Wrong:
            @staticmethod
            def alq_layout():
                layout = json.loads(self.lib.alq_layout())
                layout["alq_param_desc"]["fields"]["dtype"]["offset"] += 4
                return json.dumps(layout)

        with self.assertRaisesRegex(ImportError, "alq_param_desc.dtype"):
            _ffi.check_layout(Wrong)

    def test_description_matches(self):
        with open(os.path.join(ROOT, "abi", "aliquot.json"),
                  encoding="ascii") as file:
            told = json.load(file)
        self.assertEqual([f["name"] for f in told["functions"]],
                         list(_ffi.FUNCTIONS))
        for function in told["functions"]:
            _, arguments = _ffi.FUNCTIONS[function["name"]]
            self.assertEqual(len(arguments), len(function["args"]),
                             function["name"])
        theirs = json.loads(self.lib.alq_layout())
        for struct in told["structs"]:
            self.assertEqual(struct["size"], theirs[struct["name"]]["size"])
        for constant in told["constants"]:
            self.assertEqual(getattr(_ffi, constant["name"]),
                             constant["value"])

    def test_calls(self):
        version = (_ffi.ALQ_VERSION_MAJOR * 1000000
                   + _ffi.ALQ_VERSION_MINOR * 1000 + _ffi.ALQ_VERSION_PATCH)
        self.assertEqual(self.lib.alq_version(), version)
        self.assertEqual(self.lib.alq_status_name(_ffi.ALQ_PEER_FAILED),
                         b"ALQ_PEER_FAILED")
        self.assertEqual(self.lib.alq_status_name(-77), b"ALQ_UNKNOWN")
        self.assertEqual(self.lib.alq_dtype_size(_ffi.ALQ_BF16), 2)
        self.assertEqual(self.lib.alq_dtype_name(_ffi.ALQ_F32), b"f32")
        self.assertEqual(self.lib.alq_dtype_size(99), 0)
        info = json.loads(self.lib.alq_build_info())
        self.assertIn("compiler", info)

    def test_every_status_has_its_name(self):
        with open(os.path.join(ROOT, "abi", "aliquot.json"),
                  encoding="ascii") as file:
            constants = json.load(file)["constants"]
        statuses = [c for c in constants if c["section"] == "status"
                    and not c["name"].startswith("ALQ_DOMAIN")]
        self.assertGreater(len(statuses), 20)
        for constant in statuses:
            self.assertEqual(self.lib.alq_status_name(constant["value"]),
                             constant["name"].encode())

    def test_get_api(self):
        table = self.lib.alq_get_api(_ffi.ALQ_ABI_MAJOR, 0)
        size, version = (ctypes.c_uint32 * 2).from_address(table)
        self.assertEqual(size, 8 + 8 * len(_ffi.FUNCTIONS))
        self.assertEqual(version, _ffi.ALQ_ABI_VERSION)
        slots = (ctypes.c_void_p * len(_ffi.FUNCTIONS)).from_address(table + 8)
        for slot, name in zip(slots, _ffi.FUNCTIONS):
            address = ctypes.cast(getattr(self.lib, name), ctypes.c_void_p)
            self.assertEqual(slot, address.value, name)
        self.assertIsNone(self.lib.alq_get_api(_ffi.ALQ_ABI_MAJOR + 1, 0))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
