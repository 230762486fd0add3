from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNKNOWN: _ClassVar[Role]
    PEER: _ClassVar[Role]
    APPLICATION: _ClassVar[Role]
    CONTACT: _ClassVar[Role]
    EDGE: _ClassVar[Role]

class Ability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NONE: _ClassVar[Ability]
    KEEPS_TYPES: _ClassVar[Ability]
    GIVES_LARGE: _ClassVar[Ability]
    TELLS_STATUS: _ClassVar[Ability]
UNKNOWN: Role
PEER: Role
APPLICATION: Role
CONTACT: Role
EDGE: Role
NONE: Ability
KEEPS_TYPES: Ability
GIVES_LARGE: Ability
TELLS_STATUS: Ability

class Opening(_message.Message):
    __slots__ = ("magic", "role", "protocol", "domain_id", "node_id", "incarnation", "name", "release", "settings", "abilities")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MAGIC_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    ABILITIES_FIELD_NUMBER: _ClassVar[int]
    magic: int
    role: Role
    protocol: int
    domain_id: int
    node_id: int
    incarnation: int
    name: str
    release: str
    settings: _containers.ScalarMap[str, str]
    abilities: int
    def __init__(self, magic: _Optional[int] = ..., role: _Optional[_Union[Role, str]] = ..., protocol: _Optional[int] = ..., domain_id: _Optional[int] = ..., node_id: _Optional[int] = ..., incarnation: _Optional[int] = ..., name: _Optional[str] = ..., release: _Optional[str] = ..., settings: _Optional[_Mapping[str, str]] = ..., abilities: _Optional[int] = ...) -> None: ...

class OpeningReply(_message.Message):
    __slots__ = ("magic", "protocol", "node_id", "incarnation", "kind", "message", "release", "standing", "group_id", "abilities")
    class Standing(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        LOOKING: _ClassVar[OpeningReply.Standing]
        MEMBER: _ClassVar[OpeningReply.Standing]
        SERVING: _ClassVar[OpeningReply.Standing]
        FORMING: _ClassVar[OpeningReply.Standing]
        WAITING: _ClassVar[OpeningReply.Standing]
    LOOKING: OpeningReply.Standing
    MEMBER: OpeningReply.Standing
    SERVING: OpeningReply.Standing
    FORMING: OpeningReply.Standing
    WAITING: OpeningReply.Standing
    MAGIC_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ABILITIES_FIELD_NUMBER: _ClassVar[int]
    magic: int
    protocol: int
    node_id: int
    incarnation: int
    kind: str
    message: str
    release: str
    standing: OpeningReply.Standing
    group_id: int
    abilities: int
    def __init__(self, magic: _Optional[int] = ..., protocol: _Optional[int] = ..., node_id: _Optional[int] = ..., incarnation: _Optional[int] = ..., kind: _Optional[str] = ..., message: _Optional[str] = ..., release: _Optional[str] = ..., standing: _Optional[_Union[OpeningReply.Standing, str]] = ..., group_id: _Optional[int] = ..., abilities: _Optional[int] = ...) -> None: ...
