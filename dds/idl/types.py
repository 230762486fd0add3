"""Member types for IDL types: sized numbers, bounded strings, sequences, arrays. All of them are those of
`cyclonedds_idl`."""

from __future__ import annotations

from cyclonedds_idl.types import (
    NoneType,
    ValidUnionHolder,
    array,
    bounded_str,
    byte,
    case,
    char,
    default,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    sequence,
    typedef,
    uint8,
    uint16,
    uint32,
    uint64,
    wchar,
)

__all__ = [
    "NoneType", "ValidUnionHolder", "array", "bounded_str", "byte", "case", "char", "default", "float32", "float64",
    "int8", "int16", "int32", "int64", "sequence", "typedef", "uint8", "uint16", "uint32", "uint64", "wchar",
]
