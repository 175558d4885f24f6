"""The header as data: functions, structs, constants, each checked.

Clang's AST gives the types, comments.py the words.  Reading fails on anything
the ABI forbids, so that nothing wrong reaches a generated file: see _Checker.
"""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass, field

from . import comments

STRICT = ["-std=c99", "-Wall", "-Wextra", "-Wpadded", "-Wstrict-prototypes",
          "-pedantic", "-Werror"]

# Bytes of the types that may appear by value.
SCALARS = {"int32_t": 4, "uint32_t": 4, "int64_t": 8, "uint64_t": 8,
           "size_t": 8, "double": 8}
# alq_tensor repeats DLPack's DLTensor, which has small integers.
TENSOR_SCALARS = {"uint8_t": 1, "uint16_t": 2}
# Frozen forever and always passed by pointer: no struct_size and flags.
PLAIN_STRUCTS = {"alq_stream", "alq_tensor"}


class HeaderError(Exception):
    """What the header does that it must not; one line per finding."""


@dataclass
class Type:
    text: str      # as in C, "const alq_open_desc*"
    base: str      # without const and pointers, "alq_open_desc"
    pointers: int
    const: bool    # the pointee (or value) itself is const
    array: int     # elements of a fixed array, else 0


@dataclass
class Field:
    name: str
    type: Type
    offset: int = 0
    size: int = 0


@dataclass
class Struct:
    name: str
    fields: list
    doc: str = ""
    size: int = 0


@dataclass
class Function:
    name: str
    result: Type
    args: list
    doc: comments.Doc


@dataclass
class Constant:
    name: str
    value: int
    unsigned: bool
    doc: str
    section: str


@dataclass
class Header:
    functions: list = field(default_factory=list)
    structs: list = field(default_factory=list)
    integers: dict = field(default_factory=dict)  # alq_dtype -> int32_t
    opaque: list = field(default_factory=list)
    constants: list = field(default_factory=list)


def find_clang():
    for name in ("clang-14", "clang"):
        if shutil.which(name):
            return name
    raise HeaderError("no clang found; install the package clang-14")


def parse_type(text):
    text = re.sub(r"\b(struct|restrict) ", "", text)
    array = re.search(r"\[(\d+)\]$", text)
    bare = text[:array.start()] if array else text
    head = bare.split("*")[0]
    base = re.sub(r"\bconst\b", "", head).strip()
    pretty = re.sub(r"\s+\*", "*", bare).replace("*const", "* const").strip()
    return Type(pretty, base, bare.count("*"), "const" in head.split(),
                int(array.group(1)) if array else 0)


def _dump_ast(path):
    run = subprocess.run(
        [find_clang(), "-x", "c", *STRICT, "-Xclang", "-ast-dump=json",
         "-fsyntax-only", path], capture_output=True, text=True, check=False)
    if run.returncode != 0 or run.stderr.strip():
        raise HeaderError(f"clang refuses the header:\n{run.stderr.strip()}")
    return json.loads(run.stdout)


def _own_nodes(ast, path):
    """Top-level nodes of the header itself.  Clang names a file only where it
    changes, so the last one named is carried along."""
    current = ""

    def walk(value):
        nonlocal current
        if isinstance(value, dict):
            if "file" in value and "offset" in value:
                current = value["file"]
            for key, item in value.items():
                if key != "includedFrom":
                    walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)

    own = []
    for node in ast["inner"]:
        walk({"loc": node.get("loc", {})})
        if current == path and not node.get("isImplicit"):
            own.append(node)
        walk({k: v for k, v in node.items() if k != "loc"})
    return own


def _begin(node):
    begin = node["range"]["begin"]
    return begin.get("expansionLoc", begin)["offset"]


def read(path):
    with open(path, encoding="ascii") as file:
        text = file.read()
    scan = comments.Scanner(text)
    header = Header()
    checker = _Checker(header)
    for node in _own_nodes(_dump_ast(path), path):
        checker.node(node, scan.doc_at(_begin(node)))
    for define in scan.defines:
        checker.define(define)
    if checker.errors:
        raise HeaderError("\n".join(checker.errors))
    return header


class _Checker:
    """Turns nodes into the model and collects every violation."""

    def __init__(self, header):
        self.header = header
        self.errors = []
        self._names = set()
        self._records = {}

    def node(self, node, doc):
        kind = node["kind"]
        if kind == "FunctionDecl":
            self._function(node, doc)
        elif kind == "RecordDecl":
            self._record(node, doc)
        elif kind == "TypedefDecl":
            self._typedef(node)
        else:
            self._fail(node.get("name", "?"), f"{kind} is not allowed")

    def define(self, define):
        if define.name in ("ALQ_API", "ALQ_ALIQUOT_H_"):
            return
        known = {c.name: c.value for c in self.header.constants}
        source = re.sub(r"\b(0x[0-9a-fA-F]+|\d+)u\b", r"\1", define.value)
        for name in re.findall(r"\bALQ_\w+", source):
            if name not in known:
                self._fail(define.name, f"uses {name}, which is not known yet")
                return
            source = re.sub(rf"\b{name}\b", str(known[name]), source)
        if not re.fullmatch(r"[-0-9a-fxA-F()<>| +*]+", source):
            self._fail(define.name, f"'{define.value}' is no integer")
            return
        self._unique(define.name)
        self.header.constants.append(Constant(
            define.name, eval(source, {"__builtins__": {}}),  # digits only
            bool(re.search(r"\du\b", define.value)), define.doc,
            define.section))

    def _fail(self, name, text):
        self.errors.append(f"{name}: {text}")

    def _unique(self, name):
        if name in self._names:
            self._fail(name, "is declared twice")
        self._names.add(name)

    def _typedef(self, node):
        name = node["name"]
        target = parse_type(node["type"]["qualType"])
        if not name.startswith("alq_"):
            self._fail(name, "does not begin with alq_")
        if target.base == name:  # typedef struct alq_x alq_x
            if name in self._records:
                self._struct(*self._records[name])
            else:
                self._unique(name)
                self.header.opaque.append(name)
        elif target.base == "int32_t" and not target.pointers:
            self._unique(name)
            self.header.integers[name] = target.base
        else:
            self._fail(name, f"typedef of {target.text} is not allowed")

    def _record(self, node, doc):
        if node.get("tagUsed") != "struct":
            self._fail(node.get("name", "?"),
                       f"{node.get('tagUsed')} is not allowed")
        elif node.get("completeDefinition"):
            self._records[node["name"]] = (node, doc)

    def _struct(self, node, doc):
        name = node["name"]
        self._unique(name)
        struct = Struct(name, [], doc.text if doc else "")
        for item in node.get("inner", []):
            if item["kind"] == "FieldDecl":
                self._field(struct, item)
            elif item["kind"] == "RecordDecl":
                self._fail(name, "nested records are not allowed")
        head = [f.name for f in struct.fields[:2]]
        if name not in PLAIN_STRUCTS and head != ["struct_size", "flags"]:
            self._fail(name, "must begin with uint32_t struct_size, flags")
        if struct.size % 8:
            self._fail(name, f"has {struct.size} bytes; not a multiple of 8")
        self.header.structs.append(struct)

    def _field(self, struct, node):
        label = f"{struct.name}.{node['name']}"
        if node.get("isBitfield"):
            self._fail(label, "bit-fields are not allowed")
        kind = parse_type(node["type"]["qualType"])
        size = self._value_size(label, kind, struct.name)
        align = min(size, 8) or 1
        if struct.size % align:
            self._fail(label, f"needs padding at offset {struct.size}")
        total = size * (kind.array or 1)
        struct.fields.append(Field(node["name"], kind, struct.size, total))
        struct.size += total

    def _value_size(self, label, kind, owner=""):
        """Bytes of a value of that type; complains where R3 forbids it."""
        pointee = {"void", "char", *SCALARS, *self.header.integers,
                   *self.header.opaque, *self._records}
        if kind.pointers:
            if kind.base not in pointee or "(" in kind.text:
                self._fail(label, f"type {kind.text} is not allowed")
            return 8
        if kind.array and kind.base == "char":
            return 1
        if kind.base in self.header.integers:
            return 4
        if owner == "alq_tensor" and kind.base in TENSOR_SCALARS:
            return TENSOR_SCALARS[kind.base]
        if kind.base not in SCALARS:
            self._fail(label, f"type {kind.text} is not allowed by value")
            return 8
        return SCALARS[kind.base]

    def _function(self, node, doc):
        name = node["name"]
        self._unique(name)
        if not name.startswith("alq_"):
            self._fail(name, "does not begin with alq_")
        if node.get("variadic"):
            self._fail(name, "variable arguments are not allowed")
        if node.get("inline") or node.get("storageClass"):
            self._fail(name, "inline and static functions are not allowed")
        attributes = {i["kind"] for i in node.get("inner", [])}
        if "VisibilityAttr" not in attributes:
            self._fail(name, "is not marked ALQ_API")
        result = parse_type(node["type"]["qualType"].split("(")[0])
        if result.text != "void":
            self._value_size(f"{name} result", result)
        args = [self._argument(name, item) for item in node.get("inner", [])
                if item["kind"] == "ParmVarDecl"]
        self._error_last(name, result, args)
        self._tags(name, doc)
        self.header.functions.append(Function(name, result, args, doc))

    def _argument(self, function, node):
        if "name" not in node:
            self._fail(function, "has an argument without a name")
        name = node.get("name", "?")
        kind = parse_type(node["type"]["qualType"])
        self._value_size(f"{function}({name})", kind)
        return Field(name, kind)

    def _error_last(self, name, result, args):
        if result.base != "alq_status":
            return
        if not args or args[-1].type.text != "alq_error*":
            self._fail(name, "returns alq_status but the last argument is not "
                             "alq_error* err")

    def _tags(self, name, doc):
        thread = doc.thread if doc else ""
        blocks = doc.blocks if doc else ""
        if not re.match(r"(any|handle|collective)\b", thread):
            self._fail(name, "its comment lacks 'Thread: any | handle | "
                             "collective'")
        if not re.match(r"(never|until|as the collectives)\b", blocks):
            self._fail(name, "its comment lacks 'Blocks: never | until ...'")
