from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StreamFrame(_message.Message):
    __slots__ = ("allowed", "open", "data", "credit", "close")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    allowed: Allowed
    open: Open
    data: Data
    credit: Credit
    close: Close
    def __init__(self, allowed: _Optional[_Union[Allowed, _Mapping]] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., data: _Optional[_Union[Data, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ...) -> None: ...

class Allowed(_message.Message):
    __slots__ = ("streams",)
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    streams: int
    def __init__(self, streams: _Optional[int] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("stream",)
    STREAM_FIELD_NUMBER: _ClassVar[int]
    stream: int
    def __init__(self, stream: _Optional[int] = ...) -> None: ...

class Data(_message.Message):
    __slots__ = ("stream", "content")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    stream: int
    content: bytes
    def __init__(self, stream: _Optional[int] = ..., content: _Optional[bytes] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("stream", "bytes")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    stream: int
    bytes: int
    def __init__(self, stream: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("stream", "kind", "text")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    stream: int
    kind: str
    text: str
    def __init__(self, stream: _Optional[int] = ..., kind: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...
