from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClientSide(_message.Message):
    __slots__ = ("begin", "request", "messages", "credit", "piece")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    begin: Begin
    request: bytes
    messages: Messages
    credit: Credit
    piece: Piece
    def __init__(self, begin: _Optional[_Union[Begin, _Mapping]] = ..., request: _Optional[bytes] = ..., messages: _Optional[_Union[Messages, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., piece: _Optional[_Union[Piece, _Mapping]] = ...) -> None: ...

class NodeSide(_message.Message):
    __slots__ = ("node", "deliveries", "progress", "piece")
    NODE_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    node: bytes
    deliveries: Deliveries
    progress: Progress
    piece: Piece
    def __init__(self, node: _Optional[bytes] = ..., deliveries: _Optional[_Union[Deliveries, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., piece: _Optional[_Union[Piece, _Mapping]] = ...) -> None: ...

class Begin(_message.Message):
    __slots__ = ("client", "turn")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    client: bytes
    turn: int
    def __init__(self, client: _Optional[bytes] = ..., turn: _Optional[int] = ...) -> None: ...

class Messages(_message.Message):
    __slots__ = ("port", "messages")
    PORT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    port: int
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    def __init__(self, port: _Optional[int] = ..., messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("payload", "source_ns", "tag", "key", "large")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    SOURCE_NS_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    LARGE_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    source_ns: int
    tag: int
    key: int
    large: int
    def __init__(self, payload: _Optional[bytes] = ..., source_ns: _Optional[int] = ..., tag: _Optional[int] = ..., key: _Optional[int] = ..., large: _Optional[int] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("port", "number", "size", "at", "content")
    PORT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    port: int
    number: int
    size: int
    at: int
    content: bytes
    def __init__(self, port: _Optional[int] = ..., number: _Optional[int] = ..., size: _Optional[int] = ..., at: _Optional[int] = ..., content: _Optional[bytes] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("port", "bytes")
    PORT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    port: int
    bytes: int
    def __init__(self, port: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Deliveries(_message.Message):
    __slots__ = ("port", "messages", "lost")
    PORT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    port: int
    messages: _containers.RepeatedCompositeFieldContainer[Delivery]
    lost: int
    def __init__(self, port: _Optional[int] = ..., messages: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ..., lost: _Optional[int] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("payload", "sender", "sequence", "view_id", "source_ns", "writer_id", "reception_ns", "relay", "tag", "large")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_NS_FIELD_NUMBER: _ClassVar[int]
    WRITER_ID_FIELD_NUMBER: _ClassVar[int]
    RECEPTION_NS_FIELD_NUMBER: _ClassVar[int]
    RELAY_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    LARGE_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    sender: int
    sequence: int
    view_id: int
    source_ns: int
    writer_id: int
    reception_ns: int
    relay: int
    tag: int
    large: bool
    def __init__(self, payload: _Optional[bytes] = ..., sender: _Optional[int] = ..., sequence: _Optional[int] = ..., view_id: _Optional[int] = ..., source_ns: _Optional[int] = ..., writer_id: _Optional[int] = ..., reception_ns: _Optional[int] = ..., relay: _Optional[int] = ..., tag: _Optional[int] = ..., large: bool = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("port", "consumed", "acknowledged", "persisted")
    PORT_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    PERSISTED_FIELD_NUMBER: _ClassVar[int]
    port: int
    consumed: int
    acknowledged: int
    persisted: int
    def __init__(self, port: _Optional[int] = ..., consumed: _Optional[int] = ..., acknowledged: _Optional[int] = ..., persisted: _Optional[int] = ...) -> None: ...
