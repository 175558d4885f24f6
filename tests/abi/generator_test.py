"""The generator refuses what the ABI forbids and notices stale output."""

import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
GENERATE = os.path.join(ROOT, "abi", "generate")
TAGS = "/* Does it.  Thread: any.  Blocks: never. */\n"

with open(os.path.join(ROOT, "include/aliquot/aliquot.h"),
          encoding="ascii") as file:
    HEADER = file.read()


def generate(text, *options):
    """(exit status, stderr, scratch root's outputs) for a header's text."""
    with tempfile.TemporaryDirectory() as root:
        path = os.path.join(root, "aliquot.h")
        with open(path, "w", encoding="ascii") as out:
            out.write(text)
        run = subprocess.run(
            [sys.executable, GENERATE, "--root", root, "--header", path,
             *options], capture_output=True, text=True, check=False)
        outputs = {}
        for folder, _, names in os.walk(root):
            for name in names:
                with open(os.path.join(folder, name), encoding="ascii") as f:
                    outputs[name] = f.read()
        return run.returncode, run.stderr, outputs


def with_declaration(text):
    mark = "/* ---------------------------------------------------------- table"
    assert mark in HEADER
    return HEADER.replace(mark, text + "\n\n" + mark)


class Refuses(unittest.TestCase):
    def refuses(self, declaration, *words):
        status, errors, outputs = generate(with_declaration(declaration))
        self.assertNotEqual(status, 0, declaration)
        for word in words:
            self.assertIn(word, errors)
        self.assertEqual(list(outputs), ["aliquot.h"], "wrote output anyway")

    def test_plain_int(self):
        self.refuses(TAGS + "ALQ_API int32_t alq_f(int x);", "alq_f(x)", "int")

    def test_plain_int_result(self):
        self.refuses(TAGS + "ALQ_API int alq_f(void);", "alq_f", "int")

    def test_long(self):
        self.refuses(TAGS + "ALQ_API int32_t alq_f(long x);", "alq_f(x)")

    def test_pointer_to_long(self):
        self.refuses(TAGS + "ALQ_API int32_t alq_f(const long* x);", "alq_f(x)")

    def test_bool(self):
        self.refuses(TAGS + "ALQ_API int32_t alq_f(_Bool x);", "alq_f(x)")

    def test_float_by_value(self):
        self.refuses(TAGS + "ALQ_API int32_t alq_f(float x);", "alq_f(x)")

    def test_enum(self):
        self.refuses("enum alq_e { ALQ_E1 };", "alq_e")

    def test_union(self):
        self.refuses("union alq_u { int32_t a; double b; };", "union")

    def test_struct_by_value(self):
        self.refuses(TAGS + "ALQ_API int32_t alq_f(alq_stream s);",
                     "alq_f(s)", "alq_stream")

    def test_callback(self):
        self.refuses(TAGS + "ALQ_API int32_t alq_f(void (*call)(void*));",
                     "alq_f(call)")

    def test_variable_arguments(self):
        self.refuses(TAGS + "ALQ_API int32_t alq_f(int32_t n, ...);",
                     "variable arguments")

    def test_inline_code(self):
        self.refuses(TAGS + "static int32_t alq_f(void) { return 1; }",
                     "alq_f")

    def test_missing_export_mark(self):
        self.refuses(TAGS + "int32_t alq_f(void);", "ALQ_API")

    def test_missing_tags(self):
        self.refuses("/* Does it. */\nALQ_API int32_t alq_f(void);",
                     "Thread:", "Blocks:")

    def test_missing_blocks_tag(self):
        self.refuses("/* Does it.  Thread: any. */\n"
                     "ALQ_API int32_t alq_f(void);", "Blocks:")

    def test_unknown_thread_tag(self):
        self.refuses("/* Thread: some.  Blocks: never. */\n"
                     "ALQ_API int32_t alq_f(void);", "Thread:")

    def test_comment_apart_from_declaration(self):
        self.refuses(TAGS + "\nALQ_API int32_t alq_f(void);", "alq_f")

    def test_foreign_name(self):
        self.refuses(TAGS + "ALQ_API int32_t other(void);", "other")

    def test_status_without_error(self):
        self.refuses(TAGS + "ALQ_API alq_status alq_f(int32_t x);",
                     "alq_error")

    def test_duplicate(self):
        self.refuses(TAGS + "ALQ_API int32_t alq_version(void);",
                     "alq_version")

    def test_duplicate_constant(self):
        self.refuses("#define ALQ_OK2 1\n#define ALQ_OK2 1", "ALQ_OK2")

    def test_struct_without_head(self):
        self.refuses("typedef struct alq_s { int64_t a; } alq_s;",
                     "alq_s", "struct_size")

    def test_padding(self):
        self.refuses("typedef struct alq_s {\n  uint32_t struct_size, flags;\n"
                     "  int32_t a;\n  int64_t b;\n} alq_s;", "padd")

    def test_bit_field(self):
        self.refuses("typedef struct alq_s {\n  uint32_t struct_size, flags;\n"
                     "  uint32_t a : 16, b : 16;\n  uint32_t c;\n} alq_s;",
                     "bit-field")

    def test_missing_include(self):
        text = HEADER.replace("#include <stddef.h>\n", "")
        text = text.replace("#include <stdint.h>\n", "")
        status, errors, _ = generate(text)
        self.assertNotEqual(status, 0)
        self.assertIn("clang refuses", errors)


class Writes(unittest.TestCase):
    def test_committed_output_is_current(self):
        run = subprocess.run([sys.executable, GENERATE, "--check"],
                             capture_output=True, text=True, check=False)
        self.assertEqual(run.returncode, 0, run.stderr)

    def test_stale_output_is_named(self):
        status, errors, _ = generate(HEADER, "--check")
        self.assertNotEqual(status, 0)
        self.assertIn("abi/aliquot.symbols is stale", errors)

    def test_new_function_reaches_every_output(self):
        text = with_declaration(
            "/* Doubles.  Thread: any.  Blocks: never. */\n"
            "ALQ_API int32_t alq_double_it(int32_t value);\n"
            "ALQ_API int32_t alq_double_again(int32_t value);")
        status, errors, outputs = generate(text)
        self.assertEqual(status, 0, errors)
        for name in ("aliquot.symbols", "aliquot.map", "aliquot_api.h",
                     "api_table.cc", "probe.c", "symbols_test.c",
                     "aliquot.json", "_ffi.py"):
            self.assertIn("alq_double_it", outputs[name], name)
            self.assertIn("alq_double_again", outputs[name], name)

    def test_common_tags_end_with_own_tags(self):
        text = with_declaration(
            "/* Pairs.  Common to all of them: x.\n"
            " * Thread: handle.  Blocks: never. */\n\n"
            "/* First. */\nALQ_API int32_t alq_first(void);\n\n"
            "/* Second.  Thread: any.  Blocks: never. */\n"
            "ALQ_API int32_t alq_second(void);\n\n"
            "/* Third. */\nALQ_API int32_t alq_third(void);")
        status, errors, _ = generate(text)
        self.assertNotEqual(status, 0)
        self.assertIn("alq_third", errors)
        self.assertNotIn("alq_first", errors)

    def test_new_constant_and_field(self):
        text = with_declaration(
            "#define ALQ_ANSWER 42\n\ntypedef struct alq_extra {\n"
            "  uint32_t struct_size, flags;\n  double a[3];\n"
            "  alq_dtype d, e;\n} alq_extra;")
        status, errors, outputs = generate(text)
        self.assertEqual(status, 0, errors)
        self.assertIn("ALQ_ANSWER = 42", outputs["_ffi.py"])
        self.assertIn("#define ALQ_EXTRA_SIZE_1_0 40u",
                      outputs["layout_asserts.h"])
        self.assertIn("offsetof(alq_extra, e) == 36",
                      outputs["layout_asserts.h"])


if __name__ == "__main__":
    unittest.main()
