"""Annotations for IDL types: keys, extensibility, member ids. All of them are those of `cyclonedds_idl`."""

from __future__ import annotations

from cyclonedds_idl.annotations import (
    AnnotationException,
    appendable,
    autoid,
    bit_bound,
    cdrv0,
    default_literal,
    extensibility,
    external,
    final,
    key,
    keylist,
    member_hash_id,
    member_id,
    member_name,
    must_understand,
    mutable,
    nested,
    position,
    xcdrv2,
)

__all__ = [
    "AnnotationException", "appendable", "autoid", "bit_bound", "cdrv0", "default_literal", "extensibility", "external",
    "final", "key", "keylist", "member_hash_id", "member_id", "member_name", "mutable", "must_understand", "nested",
    "position", "xcdrv2",
]
