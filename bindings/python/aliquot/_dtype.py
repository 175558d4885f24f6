"""Names of element types: ours, NumPy's, DLPack's, buffers' and PyTorch's."""

from typing import Any, Dict, Tuple, Union

from . import _ffi

DTYPES: Dict[str, int] = {
    "f64": _ffi.ALQ_F64, "f32": _ffi.ALQ_F32, "f16": _ffi.ALQ_F16,
    "bf16": _ffi.ALQ_BF16, "i8": _ffi.ALQ_I8, "i16": _ffi.ALQ_I16,
    "i32": _ffi.ALQ_I32, "i64": _ffi.ALQ_I64, "u8": _ffi.ALQ_U8,
    "u16": _ffi.ALQ_U16, "u32": _ffi.ALQ_U32, "u64": _ffi.ALQ_U64,
    "bool": _ffi.ALQ_BOOL, "f8e4m3": _ffi.ALQ_F8E4M3,
    "f8e5m2": _ffi.ALQ_F8E5M2}
NAMES = {code: name for name, code in DTYPES.items()}
SIZES = {_ffi.ALQ_F64: 8, _ffi.ALQ_F32: 4, _ffi.ALQ_F16: 2, _ffi.ALQ_BF16: 2,
         _ffi.ALQ_I8: 1, _ffi.ALQ_I16: 2, _ffi.ALQ_I32: 4, _ffi.ALQ_I64: 8,
         _ffi.ALQ_U8: 1, _ffi.ALQ_U16: 2, _ffi.ALQ_U32: 4, _ffi.ALQ_U64: 8,
         _ffi.ALQ_BOOL: 1, _ffi.ALQ_F8E4M3: 1, _ffi.ALQ_F8E5M2: 1}

# NumPy's dtype.name (ml_dtypes' too) and torch's, without "torch.".
LONG_NAMES: Dict[str, int] = {
    "float64": _ffi.ALQ_F64, "float32": _ffi.ALQ_F32, "float16": _ffi.ALQ_F16,
    "bfloat16": _ffi.ALQ_BF16, "int8": _ffi.ALQ_I8, "int16": _ffi.ALQ_I16,
    "int32": _ffi.ALQ_I32, "int64": _ffi.ALQ_I64, "uint8": _ffi.ALQ_U8,
    "uint16": _ffi.ALQ_U16, "uint32": _ffi.ALQ_U32, "uint64": _ffi.ALQ_U64,
    "bool": _ffi.ALQ_BOOL, "float8_e4m3fn": _ffi.ALQ_F8E4M3,
    "float8_e5m2": _ffi.ALQ_F8E5M2}
LONG = {code: name for name, code in LONG_NAMES.items()}

# Array interface: kind and bytes; a byte order other than this machine's has
# another first character and is not found.
TYPESTR: Dict[str, int] = {
    "<f8": _ffi.ALQ_F64, "<f4": _ffi.ALQ_F32, "<f2": _ffi.ALQ_F16,
    "|i1": _ffi.ALQ_I8, "<i2": _ffi.ALQ_I16, "<i4": _ffi.ALQ_I32,
    "<i8": _ffi.ALQ_I64, "|u1": _ffi.ALQ_U8, "<u2": _ffi.ALQ_U16,
    "<u4": _ffi.ALQ_U32, "<u8": _ffi.ALQ_U64, "|b1": _ffi.ALQ_BOOL}

# DLPack: (type code, bits).
DLPACK: Dict[Tuple[int, int], int] = {
    (2, 64): _ffi.ALQ_F64, (2, 32): _ffi.ALQ_F32, (2, 16): _ffi.ALQ_F16,
    (4, 16): _ffi.ALQ_BF16, (0, 8): _ffi.ALQ_I8, (0, 16): _ffi.ALQ_I16,
    (0, 32): _ffi.ALQ_I32, (0, 64): _ffi.ALQ_I64, (1, 8): _ffi.ALQ_U8,
    (1, 16): _ffi.ALQ_U16, (1, 32): _ffi.ALQ_U32, (1, 64): _ffi.ALQ_U64,
    (6, 8): _ffi.ALQ_BOOL, (10, 8): _ffi.ALQ_F8E4M3, (12, 8): _ffi.ALQ_F8E5M2}
DLPACK_CODE = {code: key for key, code in DLPACK.items()}

# Buffer protocol: struct format characters, native sizes.
_FORMATS = {"d": "f64", "f": "f32", "e": "f16", "b": "i8", "h": "i16",
            "i": "i32", "q": "i64", "l": "i64", "B": "u8", "c": "u8",
            "H": "u16", "I": "u32", "Q": "u64", "L": "u64", "?": "bool"}


def of_format(text: str) -> int:
    return DTYPES.get(_FORMATS.get(text.lstrip("@=<"), ""), 0)


def of(dtype: Union[str, int, Any]) -> int:
    """ALQ_* of a name ("f32", "float32"), a NumPy or torch dtype, or itself."""
    if isinstance(dtype, int):
        return dtype
    text = dtype if isinstance(dtype, str) else (
        getattr(dtype, "name", None) or str(dtype).replace("torch.", ""))
    code = DTYPES.get(text) or LONG_NAMES.get(text)
    if code is None:
        raise TypeError("%r is not an element type of aliquot; known are %s" %
                        (dtype, ", ".join(DTYPES)))
    return code
