"""Whether a reader understands a writer's type: TypeConsistencyEnforcement (DDS-XTypes 1.3, 7.6.3.4), and what stands
in its place for types that aren't IDL.

IDL types go by the rules of `dds.idl.assignability`, protobuf messages by their own: the same full name, and fields of
one number encoded in one way. Both ends of a pair ask the same questions of the same announcements, so they agree.

Rules: the answer is the first difference in words; "" if there is none. An end that announces no type (a shell command,
a program of `spindle.client`) understands everything, unless the reader forces type validation.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from dds.messages.announced import AnnouncedType, dtype_of, message_class_of
from dds.qos import Policy, Qos

if TYPE_CHECKING:
    from dds.idl.assignability import Rules

LENIENT = Qos(Policy.TypeConsistency.AllowTypeCoercion(ignore_member_names=True))


def rules_of(policy: Any) -> Rules:
    """What a reader with this TypeConsistency asks for; None = the default of XTypes."""
    from dds.idl.assignability import Rules

    if policy is None:
        return Rules()
    if isinstance(policy, Policy.TypeConsistency.DisallowTypeCoercion):
        return Rules(coercion=False)
    return Rules(True, policy.ignore_sequence_bounds, policy.ignore_string_bounds, policy.ignore_member_names,
                 policy.prevent_type_widening)


def inconsistency(reader: AnnouncedType, writer: AnnouncedType, requested: Qos) -> str:
    """What keeps a reader with the Qos `requested` from reading what a writer of this type writes."""
    if reader.kind and reader.kind == writer.kind and reader.identifier == writer.identifier:
        return ""
    policy = requested[Policy.TypeConsistency]
    if not reader.kind or not writer.kind:
        forced = policy is not None and policy.force_type_validation
        silent = "writer" if reader.kind else "reader"
        return f"the {silent} announces no type, and the reader forces type validation" if forced and (
            reader.kind or writer.kind) else ""
    if reader.kind != writer.kind:
        return f"{writer.name} at the writer, {reader.name} at the reader"
    return _difference(reader, writer, policy)


@functools.lru_cache(maxsize=1024)
def _difference(reader: AnnouncedType, writer: AnnouncedType, policy: Any) -> str:
    """Of two types of one kind. Hundreds of endpoints have few types, so the answers are kept."""
    for one, side in ((reader, "reader"), (writer, "writer")):
        if one.cls is None and not one.description:
            return (f"the types differ, and the {side}'s description ({one.left_out} bytes) was too large to be "
                    "announced (an announcement has room for 4096 bytes, Qos included): only equal types match")
    try:
        if reader.kind == "idl":
            from dds.idl.assignability import difference

            rules = rules_of(policy)
            return "" if reader.minimal == writer.minimal else difference(
                class_of_type(reader), class_of_type(writer), rules) or (
                "" if rules.coercion else "the types must be equal, and their type objects differ")
        if reader.kind == "numpy":
            return (f"{_dtype(writer)} with the keys {list(writer.keys)} at the writer, {_dtype(reader)} with the keys "
                    f"{list(reader.keys)} at the reader")
        return _of_messages(reader, writer)
    except ValueError as error:
        return f"a type that was announced can't be understood: {error}"


def class_of_type(announced: AnnouncedType) -> Any:
    """The class of an IDL type: the program's own, or one that is made of its description. Raises ValueError."""
    from dds.idl.typeobjects import class_of

    return announced.cls if announced.cls is not None else class_of(announced.identifier, announced.description)


def _dtype(announced: AnnouncedType) -> Any:
    return announced.cls if announced.cls is not None else dtype_of(announced)


# --- protobuf

_ENCODED_ALIKE = {  # types of one number on the wire that read each other's values, as protobuf's guide to updates says
    "int32": "varint", "uint32": "varint", "int64": "varint", "uint64": "varint", "bool": "varint", "enum": "varint",
    "sint32": "zigzag", "sint64": "zigzag", "fixed32": "fixed32", "sfixed32": "fixed32", "fixed64": "fixed64",
    "sfixed64": "fixed64", "float": "float", "double": "double", "string": "bytes", "bytes": "bytes",
    "message": "message", "group": "group"}


def _of_messages(reader: AnnouncedType, writer: AnnouncedType) -> str:
    if reader.name != writer.name:
        return f"message {writer.name} at the writer, {reader.name} at the reader"
    if reader.keys != writer.keys:
        return f"keys {list(writer.keys)} at the writer, {list(reader.keys)} at the reader"
    mine, theirs = (one.cls if one.cls is not None else message_class_of(one) for one in (reader, writer))
    return _of_descriptors(mine.DESCRIPTOR, theirs.DESCRIPTOR, "", set())


def _of_descriptors(mine: Any, theirs: Any, path: str, seen: set[str]) -> str:
    if mine.full_name in seen:
        return ""
    seen.add(mine.full_name)
    for one in mine.fields:
        other = theirs.fields_by_number.get(one.number)
        if other is None:
            continue
        name = f"{path}.{one.name}" if path else one.name
        has, wants = _type_text(other), _type_text(one)
        if _ENCODED_ALIKE.get(has) != _ENCODED_ALIKE.get(wants):
            return f"field {name} ({one.number}): {has} at the writer, {wants} at the reader"
        if one.message_type is not None:
            said = _of_descriptors(one.message_type, other.message_type, name, seen)
            if said:
                return said
    return ""


def _type_text(field: Any) -> str:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    return str(FieldDescriptorProto.Type.Name(field.type))[len("TYPE_"):].lower()


__all__ = ["class_of_type", "inconsistency", "rules_of"]
