from spindle.proto import attach_pb2 as _attach_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PeerMessage(_message.Message):
    __slots__ = ("current_view", "join", "topic_request", "rejection", "admission", "prepared", "installed", "row_offer", "endpoint_added", "endpoint_removed", "history", "farewell")
    CURRENT_VIEW_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    TOPIC_REQUEST_FIELD_NUMBER: _ClassVar[int]
    REJECTION_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    INSTALLED_FIELD_NUMBER: _ClassVar[int]
    ROW_OFFER_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_ADDED_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_REMOVED_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    FAREWELL_FIELD_NUMBER: _ClassVar[int]
    current_view: View
    join: JoinRequest
    topic_request: TopicRequest
    rejection: Rejection
    admission: Admission
    prepared: Prepared
    installed: Installed
    row_offer: RowOffer
    endpoint_added: _attach_pb2.Endpoint
    endpoint_removed: EndpointRemoved
    history: HistoryChunk
    farewell: Farewell
    def __init__(self, current_view: _Optional[_Union[View, _Mapping]] = ..., join: _Optional[_Union[JoinRequest, _Mapping]] = ..., topic_request: _Optional[_Union[TopicRequest, _Mapping]] = ..., rejection: _Optional[_Union[Rejection, _Mapping]] = ..., admission: _Optional[_Union[Admission, _Mapping]] = ..., prepared: _Optional[_Union[Prepared, _Mapping]] = ..., installed: _Optional[_Union[Installed, _Mapping]] = ..., row_offer: _Optional[_Union[RowOffer, _Mapping]] = ..., endpoint_added: _Optional[_Union[_attach_pb2.Endpoint, _Mapping]] = ..., endpoint_removed: _Optional[_Union[EndpointRemoved, _Mapping]] = ..., history: _Optional[_Union[HistoryChunk, _Mapping]] = ..., farewell: _Optional[_Union[Farewell, _Mapping]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("node_id", "incarnation", "address", "pid", "uid", "name")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    incarnation: int
    address: str
    pid: int
    uid: int
    name: str
    def __init__(self, node_id: _Optional[int] = ..., incarnation: _Optional[int] = ..., address: _Optional[str] = ..., pid: _Optional[int] = ..., uid: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("spec", "topic_id", "members", "senders", "fresh")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SENDERS_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    spec: _attach_pb2.TopicSpec
    topic_id: int
    members: _containers.RepeatedScalarFieldContainer[int]
    senders: _containers.RepeatedScalarFieldContainer[int]
    fresh: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, spec: _Optional[_Union[_attach_pb2.TopicSpec, _Mapping]] = ..., topic_id: _Optional[int] = ..., members: _Optional[_Iterable[int]] = ..., senders: _Optional[_Iterable[int]] = ..., fresh: _Optional[_Iterable[int]] = ...) -> None: ...

class View(_message.Message):
    __slots__ = ("group_id", "view_id", "members", "topics")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    group_id: int
    view_id: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    def __init__(self, group_id: _Optional[int] = ..., view_id: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ...) -> None: ...

class Trim(_message.Message):
    __slots__ = ("view_id", "subgroups")
    class Subgroup(_message.Message):
        __slots__ = ("topic_id", "counts")
        TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
        COUNTS_FIELD_NUMBER: _ClassVar[int]
        topic_id: int
        counts: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, topic_id: _Optional[int] = ..., counts: _Optional[_Iterable[int]] = ...) -> None: ...
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    SUBGROUPS_FIELD_NUMBER: _ClassVar[int]
    view_id: int
    subgroups: _containers.RepeatedCompositeFieldContainer[Trim.Subgroup]
    def __init__(self, view_id: _Optional[int] = ..., subgroups: _Optional[_Iterable[_Union[Trim.Subgroup, _Mapping]]] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("member", "view_id")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    member: Member
    view_id: int
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., view_id: _Optional[int] = ...) -> None: ...

class TopicRequest(_message.Message):
    __slots__ = ("request_id", "view_id", "declare", "role")
    class Role(_message.Message):
        __slots__ = ("topic", "member", "sender")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        MEMBER_FIELD_NUMBER: _ClassVar[int]
        SENDER_FIELD_NUMBER: _ClassVar[int]
        topic: str
        member: bool
        sender: bool
        def __init__(self, topic: _Optional[str] = ..., member: bool = ..., sender: bool = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    DECLARE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    view_id: int
    declare: _attach_pb2.TopicSpec
    role: TopicRequest.Role
    def __init__(self, request_id: _Optional[int] = ..., view_id: _Optional[int] = ..., declare: _Optional[_Union[_attach_pb2.TopicSpec, _Mapping]] = ..., role: _Optional[_Union[TopicRequest.Role, _Mapping]] = ...) -> None: ...

class Rejection(_message.Message):
    __slots__ = ("request_id", "kind", "text")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    kind: str
    text: str
    def __init__(self, request_id: _Optional[int] = ..., kind: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class Admission(_message.Message):
    __slots__ = ("view", "ballot")
    VIEW_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    view: View
    ballot: int
    def __init__(self, view: _Optional[_Union[View, _Mapping]] = ..., ballot: _Optional[int] = ...) -> None: ...

class Prepared(_message.Message):
    __slots__ = ("view_id", "ballot")
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    view_id: int
    ballot: int
    def __init__(self, view_id: _Optional[int] = ..., ballot: _Optional[int] = ...) -> None: ...

class Installed(_message.Message):
    __slots__ = ("view_id", "ballot")
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    view_id: int
    ballot: int
    def __init__(self, view_id: _Optional[int] = ..., ballot: _Optional[int] = ...) -> None: ...

class RowOffer(_message.Message):
    __slots__ = ("view_id", "ballot")
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    view_id: int
    ballot: int
    def __init__(self, view_id: _Optional[int] = ..., ballot: _Optional[int] = ...) -> None: ...

class EndpointRemoved(_message.Message):
    __slots__ = ("guid",)
    GUID_FIELD_NUMBER: _ClassVar[int]
    guid: bytes
    def __init__(self, guid: _Optional[bytes] = ...) -> None: ...

class HistoryChunk(_message.Message):
    __slots__ = ("view_id", "topic_id", "messages", "last")
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    view_id: int
    topic_id: int
    messages: _containers.RepeatedCompositeFieldContainer[HistoryMessage]
    last: bool
    def __init__(self, view_id: _Optional[int] = ..., topic_id: _Optional[int] = ..., messages: _Optional[_Iterable[_Union[HistoryMessage, _Mapping]]] = ..., last: bool = ...) -> None: ...

class HistoryMessage(_message.Message):
    __slots__ = ("payload", "sender", "sequence", "view_id", "source_ns", "writer_id", "reception_ns")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_NS_FIELD_NUMBER: _ClassVar[int]
    WRITER_ID_FIELD_NUMBER: _ClassVar[int]
    RECEPTION_NS_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    sender: int
    sequence: int
    view_id: int
    source_ns: int
    writer_id: int
    reception_ns: int
    def __init__(self, payload: _Optional[bytes] = ..., sender: _Optional[int] = ..., sequence: _Optional[int] = ..., view_id: _Optional[int] = ..., source_ns: _Optional[int] = ..., writer_id: _Optional[int] = ..., reception_ns: _Optional[int] = ...) -> None: ...

class Farewell(_message.Message):
    __slots__ = ("kind", "text")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: str
    text: str
    def __init__(self, kind: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...
