from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Request(_message.Message):
    __slots__ = ("number", "declare_topic", "open_writer", "open_reader", "close_port", "watch", "list_endpoints", "list_topics", "get_view", "get_status", "delete_topic", "announce", "withdraw", "change_port", "list_types", "open_link", "close_link", "offer_region", "end_region", "open_duplex", "take_duplex", "make_large", "hand_over_large", "drop_large", "open_large", "list_happenings", "cast_out", "leave_group")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DECLARE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    OPEN_WRITER_FIELD_NUMBER: _ClassVar[int]
    OPEN_READER_FIELD_NUMBER: _ClassVar[int]
    CLOSE_PORT_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    LIST_ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    LIST_TOPICS_FIELD_NUMBER: _ClassVar[int]
    GET_VIEW_FIELD_NUMBER: _ClassVar[int]
    GET_STATUS_FIELD_NUMBER: _ClassVar[int]
    DELETE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCE_FIELD_NUMBER: _ClassVar[int]
    WITHDRAW_FIELD_NUMBER: _ClassVar[int]
    CHANGE_PORT_FIELD_NUMBER: _ClassVar[int]
    LIST_TYPES_FIELD_NUMBER: _ClassVar[int]
    OPEN_LINK_FIELD_NUMBER: _ClassVar[int]
    CLOSE_LINK_FIELD_NUMBER: _ClassVar[int]
    OFFER_REGION_FIELD_NUMBER: _ClassVar[int]
    END_REGION_FIELD_NUMBER: _ClassVar[int]
    OPEN_DUPLEX_FIELD_NUMBER: _ClassVar[int]
    TAKE_DUPLEX_FIELD_NUMBER: _ClassVar[int]
    MAKE_LARGE_FIELD_NUMBER: _ClassVar[int]
    HAND_OVER_LARGE_FIELD_NUMBER: _ClassVar[int]
    DROP_LARGE_FIELD_NUMBER: _ClassVar[int]
    OPEN_LARGE_FIELD_NUMBER: _ClassVar[int]
    LIST_HAPPENINGS_FIELD_NUMBER: _ClassVar[int]
    CAST_OUT_FIELD_NUMBER: _ClassVar[int]
    LEAVE_GROUP_FIELD_NUMBER: _ClassVar[int]
    number: int
    declare_topic: DeclareTopic
    open_writer: OpenWriter
    open_reader: OpenReader
    close_port: ClosePort
    watch: Watch
    list_endpoints: ListEndpoints
    list_topics: ListTopics
    get_view: GetView
    get_status: GetStatus
    delete_topic: DeleteTopic
    announce: Announce
    withdraw: Withdraw
    change_port: ChangePort
    list_types: ListTypes
    open_link: OpenLink
    close_link: CloseLink
    offer_region: OfferRegion
    end_region: EndRegion
    open_duplex: OpenDuplex
    take_duplex: TakeDuplex
    make_large: MakeLarge
    hand_over_large: HandOverLarge
    drop_large: DropLarge
    open_large: OpenLarge
    list_happenings: ListHappenings
    cast_out: CastOut
    leave_group: LeaveGroup
    def __init__(self, number: _Optional[int] = ..., declare_topic: _Optional[_Union[DeclareTopic, _Mapping]] = ..., open_writer: _Optional[_Union[OpenWriter, _Mapping]] = ..., open_reader: _Optional[_Union[OpenReader, _Mapping]] = ..., close_port: _Optional[_Union[ClosePort, _Mapping]] = ..., watch: _Optional[_Union[Watch, _Mapping]] = ..., list_endpoints: _Optional[_Union[ListEndpoints, _Mapping]] = ..., list_topics: _Optional[_Union[ListTopics, _Mapping]] = ..., get_view: _Optional[_Union[GetView, _Mapping]] = ..., get_status: _Optional[_Union[GetStatus, _Mapping]] = ..., delete_topic: _Optional[_Union[DeleteTopic, _Mapping]] = ..., announce: _Optional[_Union[Announce, _Mapping]] = ..., withdraw: _Optional[_Union[Withdraw, _Mapping]] = ..., change_port: _Optional[_Union[ChangePort, _Mapping]] = ..., list_types: _Optional[_Union[ListTypes, _Mapping]] = ..., open_link: _Optional[_Union[OpenLink, _Mapping]] = ..., close_link: _Optional[_Union[CloseLink, _Mapping]] = ..., offer_region: _Optional[_Union[OfferRegion, _Mapping]] = ..., end_region: _Optional[_Union[EndRegion, _Mapping]] = ..., open_duplex: _Optional[_Union[OpenDuplex, _Mapping]] = ..., take_duplex: _Optional[_Union[TakeDuplex, _Mapping]] = ..., make_large: _Optional[_Union[MakeLarge, _Mapping]] = ..., hand_over_large: _Optional[_Union[HandOverLarge, _Mapping]] = ..., drop_large: _Optional[_Union[DropLarge, _Mapping]] = ..., open_large: _Optional[_Union[OpenLarge, _Mapping]] = ..., list_happenings: _Optional[_Union[ListHappenings, _Mapping]] = ..., cast_out: _Optional[_Union[CastOut, _Mapping]] = ..., leave_group: _Optional[_Union[LeaveGroup, _Mapping]] = ...) -> None: ...

class DeclareTopic(_message.Message):
    __slots__ = ("spec",)
    SPEC_FIELD_NUMBER: _ClassVar[int]
    spec: TopicSpec
    def __init__(self, spec: _Optional[_Union[TopicSpec, _Mapping]] = ...) -> None: ...

class DeleteTopic(_message.Message):
    __slots__ = ("topic", "renews")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RENEWS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    renews: bool
    def __init__(self, topic: _Optional[str] = ..., renews: bool = ...) -> None: ...

class OpenWriter(_message.Message):
    __slots__ = ("topic", "slots", "endpoint", "guid", "relayed", "resumed", "farewell", "lease", "type")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    GUID_FIELD_NUMBER: _ClassVar[int]
    RELAYED_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    FAREWELL_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    slots: int
    endpoint: bytes
    guid: bytes
    relayed: int
    resumed: bool
    farewell: int
    lease: Lease
    type: bytes
    def __init__(self, topic: _Optional[str] = ..., slots: _Optional[int] = ..., endpoint: _Optional[bytes] = ..., guid: _Optional[bytes] = ..., relayed: _Optional[int] = ..., resumed: bool = ..., farewell: _Optional[int] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ..., type: _Optional[bytes] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("duration_ns", "lapse", "revival")
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    LAPSE_FIELD_NUMBER: _ClassVar[int]
    REVIVAL_FIELD_NUMBER: _ClassVar[int]
    duration_ns: int
    lapse: int
    revival: int
    def __init__(self, duration_ns: _Optional[int] = ..., lapse: _Optional[int] = ..., revival: _Optional[int] = ...) -> None: ...

class OpenReader(_message.Message):
    __slots__ = ("topic", "keep_all", "from_history", "start_index", "endpoint", "guid", "after")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEEP_ALL_FIELD_NUMBER: _ClassVar[int]
    FROM_HISTORY_FIELD_NUMBER: _ClassVar[int]
    START_INDEX_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    GUID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    keep_all: bool
    from_history: bool
    start_index: int
    endpoint: bytes
    guid: bytes
    after: _containers.RepeatedCompositeFieldContainer[Position]
    def __init__(self, topic: _Optional[str] = ..., keep_all: bool = ..., from_history: bool = ..., start_index: _Optional[int] = ..., endpoint: _Optional[bytes] = ..., guid: _Optional[bytes] = ..., after: _Optional[_Iterable[_Union[Position, _Mapping]]] = ...) -> None: ...

class ClosePort(_message.Message):
    __slots__ = ("port",)
    PORT_FIELD_NUMBER: _ClassVar[int]
    port: int
    def __init__(self, port: _Optional[int] = ...) -> None: ...

class Watch(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListEndpoints(_message.Message):
    __slots__ = ("topic", "everything")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    EVERYTHING_FIELD_NUMBER: _ClassVar[int]
    topic: str
    everything: bool
    def __init__(self, topic: _Optional[str] = ..., everything: bool = ...) -> None: ...

class Announce(_message.Message):
    __slots__ = ("guid", "kind", "topic", "endpoint")
    GUID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    guid: bytes
    kind: int
    topic: str
    endpoint: bytes
    def __init__(self, guid: _Optional[bytes] = ..., kind: _Optional[int] = ..., topic: _Optional[str] = ..., endpoint: _Optional[bytes] = ...) -> None: ...

class Withdraw(_message.Message):
    __slots__ = ("guid",)
    GUID_FIELD_NUMBER: _ClassVar[int]
    guid: bytes
    def __init__(self, guid: _Optional[bytes] = ...) -> None: ...

class ChangePort(_message.Message):
    __slots__ = ("port", "endpoint", "farewell")
    PORT_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    FAREWELL_FIELD_NUMBER: _ClassVar[int]
    port: int
    endpoint: bytes
    farewell: int
    def __init__(self, port: _Optional[int] = ..., endpoint: _Optional[bytes] = ..., farewell: _Optional[int] = ...) -> None: ...

class OpenLink(_message.Message):
    __slots__ = ("node_id", "port", "memory")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    port: int
    memory: int
    def __init__(self, node_id: _Optional[int] = ..., port: _Optional[int] = ..., memory: _Optional[int] = ...) -> None: ...

class CloseLink(_message.Message):
    __slots__ = ("link",)
    LINK_FIELD_NUMBER: _ClassVar[int]
    link: int
    def __init__(self, link: _Optional[int] = ...) -> None: ...

class OfferRegion(_message.Message):
    __slots__ = ("name", "size", "writer", "atomics")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    ATOMICS_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    writer: int
    atomics: bool
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., writer: _Optional[int] = ..., atomics: bool = ...) -> None: ...

class EndRegion(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class OpenDuplex(_message.Message):
    __slots__ = ("link", "port", "over")
    LINK_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    link: int
    port: int
    over: int
    def __init__(self, link: _Optional[int] = ..., port: _Optional[int] = ..., over: _Optional[int] = ...) -> None: ...

class TakeDuplex(_message.Message):
    __slots__ = ("link", "over")
    LINK_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    link: int
    over: int
    def __init__(self, link: _Optional[int] = ..., over: _Optional[int] = ...) -> None: ...

class MakeLarge(_message.Message):
    __slots__ = ("port", "size", "timeout_ms")
    PORT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    port: int
    size: int
    timeout_ms: int
    def __init__(self, port: _Optional[int] = ..., size: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class HandOverLarge(_message.Message):
    __slots__ = ("port", "number")
    PORT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    port: int
    number: int
    def __init__(self, port: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class DropLarge(_message.Message):
    __slots__ = ("port", "number")
    PORT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    port: int
    number: int
    def __init__(self, port: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class OpenLarge(_message.Message):
    __slots__ = ("port", "id")
    PORT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    port: int
    id: int
    def __init__(self, port: _Optional[int] = ..., id: _Optional[int] = ...) -> None: ...

class ListTopics(_message.Message):
    __slots__ = ("topic", "awaited")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    awaited: bool
    def __init__(self, topic: _Optional[str] = ..., awaited: bool = ...) -> None: ...

class ListTypes(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class GetView(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatus(_message.Message):
    __slots__ = ("group", "figures")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    group: bool
    figures: bool
    def __init__(self, group: bool = ..., figures: bool = ...) -> None: ...

class ListHappenings(_message.Message):
    __slots__ = ("after",)
    AFTER_FIELD_NUMBER: _ClassVar[int]
    after: int
    def __init__(self, after: _Optional[int] = ...) -> None: ...

class CastOut(_message.Message):
    __slots__ = ("node_id",)
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    def __init__(self, node_id: _Optional[int] = ...) -> None: ...

class LeaveGroup(_message.Message):
    __slots__ = ("node_id",)
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    def __init__(self, node_id: _Optional[int] = ...) -> None: ...

class NodeFrame(_message.Message):
    __slots__ = ("refusal", "welcome", "reply", "event")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    refusal: Refusal
    welcome: Welcome
    reply: Reply
    event: Event
    def __init__(self, refusal: _Optional[_Union[Refusal, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., reply: _Optional[_Union[Reply, _Mapping]] = ..., event: _Optional[_Union[Event, _Mapping]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("number", "kind", "text")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    number: int
    kind: str
    text: str
    def __init__(self, number: _Optional[int] = ..., kind: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("node_id", "domain_id", "pid", "embedded", "view")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    EMBEDDED_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    domain_id: int
    pid: int
    embedded: bool
    view: View
    def __init__(self, node_id: _Optional[int] = ..., domain_id: _Optional[int] = ..., pid: _Optional[int] = ..., embedded: bool = ..., view: _Optional[_Union[View, _Mapping]] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("number", "topic", "writer", "reader", "done", "endpoints", "topics", "view", "status", "types", "link", "offered", "duplex", "duplex_taken", "large", "large_opened", "happenings")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    OFFERED_FIELD_NUMBER: _ClassVar[int]
    DUPLEX_FIELD_NUMBER: _ClassVar[int]
    DUPLEX_TAKEN_FIELD_NUMBER: _ClassVar[int]
    LARGE_FIELD_NUMBER: _ClassVar[int]
    LARGE_OPENED_FIELD_NUMBER: _ClassVar[int]
    HAPPENINGS_FIELD_NUMBER: _ClassVar[int]
    number: int
    topic: TopicInfo
    writer: WriterOpened
    reader: ReaderOpened
    done: Done
    endpoints: EndpointList
    topics: TopicList
    view: View
    status: Status
    types: TypeList
    link: LinkOpened
    offered: RegionOffered
    duplex: DuplexOpened
    duplex_taken: DuplexTaken
    large: LargeMade
    large_opened: LargeOpened
    happenings: HappeningList
    def __init__(self, number: _Optional[int] = ..., topic: _Optional[_Union[TopicInfo, _Mapping]] = ..., writer: _Optional[_Union[WriterOpened, _Mapping]] = ..., reader: _Optional[_Union[ReaderOpened, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., endpoints: _Optional[_Union[EndpointList, _Mapping]] = ..., topics: _Optional[_Union[TopicList, _Mapping]] = ..., view: _Optional[_Union[View, _Mapping]] = ..., status: _Optional[_Union[Status, _Mapping]] = ..., types: _Optional[_Union[TypeList, _Mapping]] = ..., link: _Optional[_Union[LinkOpened, _Mapping]] = ..., offered: _Optional[_Union[RegionOffered, _Mapping]] = ..., duplex: _Optional[_Union[DuplexOpened, _Mapping]] = ..., duplex_taken: _Optional[_Union[DuplexTaken, _Mapping]] = ..., large: _Optional[_Union[LargeMade, _Mapping]] = ..., large_opened: _Optional[_Union[LargeOpened, _Mapping]] = ..., happenings: _Optional[_Union[HappeningList, _Mapping]] = ...) -> None: ...

class LargeMade(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class LargeOpened(_message.Message):
    __slots__ = ("size",)
    SIZE_FIELD_NUMBER: _ClassVar[int]
    size: int
    def __init__(self, size: _Optional[int] = ...) -> None: ...

class LinkOpened(_message.Message):
    __slots__ = ("link", "buffer")
    LINK_FIELD_NUMBER: _ClassVar[int]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    link: int
    buffer: int
    def __init__(self, link: _Optional[int] = ..., buffer: _Optional[int] = ...) -> None: ...

class RegionOffered(_message.Message):
    __slots__ = ("key", "name")
    KEY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    key: int
    name: str
    def __init__(self, key: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class DuplexOpened(_message.Message):
    __slots__ = ("elsewhere",)
    ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    elsewhere: bool
    def __init__(self, elsewhere: bool = ...) -> None: ...

class DuplexTaken(_message.Message):
    __slots__ = ("life", "link")
    LIFE_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    life: int
    link: int
    def __init__(self, life: _Optional[int] = ..., link: _Optional[int] = ...) -> None: ...

class WriterOpened(_message.Message):
    __slots__ = ("port", "topic", "writer_id", "slots", "sent_ns", "large_max")
    PORT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    WRITER_ID_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SENT_NS_FIELD_NUMBER: _ClassVar[int]
    LARGE_MAX_FIELD_NUMBER: _ClassVar[int]
    port: int
    topic: TopicInfo
    writer_id: int
    slots: int
    sent_ns: int
    large_max: int
    def __init__(self, port: _Optional[int] = ..., topic: _Optional[_Union[TopicInfo, _Mapping]] = ..., writer_id: _Optional[int] = ..., slots: _Optional[int] = ..., sent_ns: _Optional[int] = ..., large_max: _Optional[int] = ...) -> None: ...

class ReaderOpened(_message.Message):
    __slots__ = ("port", "topic", "start", "continued", "ends", "table", "said_ns", "types")
    PORT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    CONTINUED_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    SAID_NS_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    port: int
    topic: TopicInfo
    start: Position
    continued: bool
    ends: _containers.RepeatedCompositeFieldContainer[Position]
    table: bool
    said_ns: int
    types: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, port: _Optional[int] = ..., topic: _Optional[_Union[TopicInfo, _Mapping]] = ..., start: _Optional[_Union[Position, _Mapping]] = ..., continued: bool = ..., ends: _Optional[_Iterable[_Union[Position, _Mapping]]] = ..., table: bool = ..., said_ns: _Optional[int] = ..., types: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EndpointList(_message.Message):
    __slots__ = ("endpoints",)
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    endpoints: _containers.RepeatedCompositeFieldContainer[Endpoint]
    def __init__(self, endpoints: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ...) -> None: ...

class TopicList(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicInfo]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicInfo, _Mapping]]] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class HappeningList(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class TypeList(_message.Message):
    __slots__ = ("types",)
    TYPES_FIELD_NUMBER: _ClassVar[int]
    types: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, types: _Optional[_Iterable[bytes]] = ...) -> None: ...

class TopicSpec(_message.Message):
    __slots__ = ("name", "type_name", "type_hash", "level", "size_max", "window", "history_depth", "history_bytes", "departure", "effects", "timing", "samples_max", "keys_max", "cleanup_ns", "ranks")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_HASH_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    SIZE_MAX_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    HISTORY_DEPTH_FIELD_NUMBER: _ClassVar[int]
    HISTORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEPARTURE_FIELD_NUMBER: _ClassVar[int]
    EFFECTS_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_MAX_FIELD_NUMBER: _ClassVar[int]
    KEYS_MAX_FIELD_NUMBER: _ClassVar[int]
    CLEANUP_NS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    name: str
    type_name: str
    type_hash: bytes
    level: int
    size_max: int
    window: int
    history_depth: int
    history_bytes: int
    departure: int
    effects: bytes
    timing: bytes
    samples_max: int
    keys_max: int
    cleanup_ns: int
    ranks: bytes
    def __init__(self, name: _Optional[str] = ..., type_name: _Optional[str] = ..., type_hash: _Optional[bytes] = ..., level: _Optional[int] = ..., size_max: _Optional[int] = ..., window: _Optional[int] = ..., history_depth: _Optional[int] = ..., history_bytes: _Optional[int] = ..., departure: _Optional[int] = ..., effects: _Optional[bytes] = ..., timing: _Optional[bytes] = ..., samples_max: _Optional[int] = ..., keys_max: _Optional[int] = ..., cleanup_ns: _Optional[int] = ..., ranks: _Optional[bytes] = ...) -> None: ...

class TopicInfo(_message.Message):
    __slots__ = ("spec", "topic_id", "members", "senders", "awaits_definition")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SENDERS_FIELD_NUMBER: _ClassVar[int]
    AWAITS_DEFINITION_FIELD_NUMBER: _ClassVar[int]
    spec: TopicSpec
    topic_id: int
    members: _containers.RepeatedScalarFieldContainer[int]
    senders: _containers.RepeatedScalarFieldContainer[int]
    awaits_definition: bool
    def __init__(self, spec: _Optional[_Union[TopicSpec, _Mapping]] = ..., topic_id: _Optional[int] = ..., members: _Optional[_Iterable[int]] = ..., senders: _Optional[_Iterable[int]] = ..., awaits_definition: bool = ...) -> None: ...

class View(_message.Message):
    __slots__ = ("view_id", "node_ids", "my_rank", "group_id")
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    MY_RANK_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    view_id: int
    node_ids: _containers.RepeatedScalarFieldContainer[int]
    my_rank: int
    group_id: int
    def __init__(self, view_id: _Optional[int] = ..., node_ids: _Optional[_Iterable[int]] = ..., my_rank: _Optional[int] = ..., group_id: _Optional[int] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("group_id", "view_id", "sequence")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    group_id: int
    view_id: int
    sequence: int
    def __init__(self, group_id: _Optional[int] = ..., view_id: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("guid", "node_id", "is_writer", "topic", "endpoint", "app_name", "pid", "writer_id", "relay", "kind")
    GUID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    IS_WRITER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    APP_NAME_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    WRITER_ID_FIELD_NUMBER: _ClassVar[int]
    RELAY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    guid: bytes
    node_id: int
    is_writer: bool
    topic: str
    endpoint: bytes
    app_name: str
    pid: int
    writer_id: int
    relay: int
    kind: int
    def __init__(self, guid: _Optional[bytes] = ..., node_id: _Optional[int] = ..., is_writer: bool = ..., topic: _Optional[str] = ..., endpoint: _Optional[bytes] = ..., app_name: _Optional[str] = ..., pid: _Optional[int] = ..., writer_id: _Optional[int] = ..., relay: _Optional[int] = ..., kind: _Optional[int] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("kind", "endpoint", "view", "topic", "text")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: str
    endpoint: Endpoint
    view: View
    topic: TopicInfo
    text: str
    def __init__(self, kind: _Optional[str] = ..., endpoint: _Optional[_Union[Endpoint, _Mapping]] = ..., view: _Optional[_Union[View, _Mapping]] = ..., topic: _Optional[_Union[TopicInfo, _Mapping]] = ..., text: _Optional[str] = ...) -> None: ...
