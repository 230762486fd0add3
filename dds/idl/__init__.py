"""Types described by annotated dataclasses, as IDL describes them: `IdlStruct`, `IdlUnion`, `IdlEnum`, `IdlBitmask`.

Why not our own: the classes are those of the library `cyclonedds-idl`, so that types made with it, or by its IDL
compiler, are the same here and isinstance() agrees. What goes over the wire is byte for byte what its serialize()
gives; `dds.idl.codec` writes and reads it faster.

    @dataclass
    class Position(IdlStruct):
        name: str
        latitude: float
        longitude: types.float32
"""

# No `from __future__ import annotations` here: `from dds.idl import annotations` would give that.
from cyclonedds_idl import (
    IdlBitmask,
    IdlEnum,
    IdlStruct,
    IdlUnion,
    make_idl_bitmask,
    make_idl_enum,
    make_idl_struct,
    make_idl_union,
)

__all__ = [
    "IdlBitmask", "IdlEnum", "IdlStruct", "IdlUnion", "make_idl_bitmask", "make_idl_enum", "make_idl_struct",
    "make_idl_union",
]
