"""abi/aliquot.json: the ABI as data, for other generators and for tests."""

import json


def _type(kind):
    out = {"c": kind.text, "base": kind.base, "pointers": kind.pointers,
           "const": kind.const}
    if kind.array:
        out["array"] = kind.array
    return out


def _function(function):
    return {
        "name": function.name,
        "section": function.doc.section,
        "result": _type(function.result),
        "args": [{"name": a.name, "type": _type(a.type)}
                 for a in function.args],
        "thread": function.doc.thread,
        "blocks": function.doc.blocks,
        "doc": function.doc.text,
    }


def _struct(struct):
    return {
        "name": struct.name,
        "size": struct.size,
        "doc": struct.doc,
        "fields": [{"name": f.name, "type": _type(f.type),
                    "offset": f.offset, "size": f.size}
                   for f in struct.fields],
    }


def describe(header):
    whole = {
        "functions": [_function(f) for f in header.functions],
        "structs": [_struct(s) for s in header.structs],
        "integers": header.integers,
        "handles": header.opaque,
        "constants": [{"name": c.name, "value": c.value,
                       "unsigned": c.unsigned, "section": c.section,
                       "doc": c.doc} for c in header.constants],
    }
    return json.dumps(whole, indent=1) + "\n"
