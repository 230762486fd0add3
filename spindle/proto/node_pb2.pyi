from spindle.proto import attach_pb2 as _attach_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PeerMessage(_message.Message):
    __slots__ = ("current_view", "join", "topic_request", "rejection", "admission", "prepared", "installed", "row_offer", "endpoint_added", "endpoint_removed", "history", "farewell", "history_request", "history_more", "restart_query", "restart_summary", "restart_record", "restart_recorded", "relay_query", "relay_answer", "lacking", "left_out", "type_held", "type_known", "type_over", "status_query", "status_part", "link_offer", "link_map", "link_mapped", "link_over", "link_more", "link_settle", "link_duplex", "link_duplex_made", "large_ask", "large_here", "large_coming", "large_lacking", "large_reach", "large_token", "large_unwanted", "leave_asked")
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
    HISTORY_REQUEST_FIELD_NUMBER: _ClassVar[int]
    HISTORY_MORE_FIELD_NUMBER: _ClassVar[int]
    RESTART_QUERY_FIELD_NUMBER: _ClassVar[int]
    RESTART_SUMMARY_FIELD_NUMBER: _ClassVar[int]
    RESTART_RECORD_FIELD_NUMBER: _ClassVar[int]
    RESTART_RECORDED_FIELD_NUMBER: _ClassVar[int]
    RELAY_QUERY_FIELD_NUMBER: _ClassVar[int]
    RELAY_ANSWER_FIELD_NUMBER: _ClassVar[int]
    LACKING_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    TYPE_HELD_FIELD_NUMBER: _ClassVar[int]
    TYPE_KNOWN_FIELD_NUMBER: _ClassVar[int]
    TYPE_OVER_FIELD_NUMBER: _ClassVar[int]
    STATUS_QUERY_FIELD_NUMBER: _ClassVar[int]
    STATUS_PART_FIELD_NUMBER: _ClassVar[int]
    LINK_OFFER_FIELD_NUMBER: _ClassVar[int]
    LINK_MAP_FIELD_NUMBER: _ClassVar[int]
    LINK_MAPPED_FIELD_NUMBER: _ClassVar[int]
    LINK_OVER_FIELD_NUMBER: _ClassVar[int]
    LINK_MORE_FIELD_NUMBER: _ClassVar[int]
    LINK_SETTLE_FIELD_NUMBER: _ClassVar[int]
    LINK_DUPLEX_FIELD_NUMBER: _ClassVar[int]
    LINK_DUPLEX_MADE_FIELD_NUMBER: _ClassVar[int]
    LARGE_ASK_FIELD_NUMBER: _ClassVar[int]
    LARGE_HERE_FIELD_NUMBER: _ClassVar[int]
    LARGE_COMING_FIELD_NUMBER: _ClassVar[int]
    LARGE_LACKING_FIELD_NUMBER: _ClassVar[int]
    LARGE_REACH_FIELD_NUMBER: _ClassVar[int]
    LARGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LARGE_UNWANTED_FIELD_NUMBER: _ClassVar[int]
    LEAVE_ASKED_FIELD_NUMBER: _ClassVar[int]
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
    history_request: HistoryRequest
    history_more: HistoryMore
    restart_query: RestartQuery
    restart_summary: RestartSummary
    restart_record: RestartRecord
    restart_recorded: RestartRecorded
    relay_query: RelayQuery
    relay_answer: RelayAnswer
    lacking: Lacking
    left_out: LeftOut
    type_held: TypeHeld
    type_known: TypeKnown
    type_over: TypeOver
    status_query: StatusQuery
    status_part: StatusPart
    link_offer: LinkOffer
    link_map: LinkMap
    link_mapped: LinkMapped
    link_over: LinkOver
    link_more: LinkMore
    link_settle: LinkSettle
    link_duplex: LinkDuplex
    link_duplex_made: LinkDuplexMade
    large_ask: LargeAsk
    large_here: LargeHere
    large_coming: LargeComing
    large_lacking: LargeLacking
    large_reach: LargeReach
    large_token: LargeToken
    large_unwanted: LargeUnwanted
    leave_asked: LeaveAsked
    def __init__(self, current_view: _Optional[_Union[View, _Mapping]] = ..., join: _Optional[_Union[JoinRequest, _Mapping]] = ..., topic_request: _Optional[_Union[TopicRequest, _Mapping]] = ..., rejection: _Optional[_Union[Rejection, _Mapping]] = ..., admission: _Optional[_Union[Admission, _Mapping]] = ..., prepared: _Optional[_Union[Prepared, _Mapping]] = ..., installed: _Optional[_Union[Installed, _Mapping]] = ..., row_offer: _Optional[_Union[RowOffer, _Mapping]] = ..., endpoint_added: _Optional[_Union[_attach_pb2.Endpoint, _Mapping]] = ..., endpoint_removed: _Optional[_Union[EndpointRemoved, _Mapping]] = ..., history: _Optional[_Union[HistoryChunk, _Mapping]] = ..., farewell: _Optional[_Union[Farewell, _Mapping]] = ..., history_request: _Optional[_Union[HistoryRequest, _Mapping]] = ..., history_more: _Optional[_Union[HistoryMore, _Mapping]] = ..., restart_query: _Optional[_Union[RestartQuery, _Mapping]] = ..., restart_summary: _Optional[_Union[RestartSummary, _Mapping]] = ..., restart_record: _Optional[_Union[RestartRecord, _Mapping]] = ..., restart_recorded: _Optional[_Union[RestartRecorded, _Mapping]] = ..., relay_query: _Optional[_Union[RelayQuery, _Mapping]] = ..., relay_answer: _Optional[_Union[RelayAnswer, _Mapping]] = ..., lacking: _Optional[_Union[Lacking, _Mapping]] = ..., left_out: _Optional[_Union[LeftOut, _Mapping]] = ..., type_held: _Optional[_Union[TypeHeld, _Mapping]] = ..., type_known: _Optional[_Union[TypeKnown, _Mapping]] = ..., type_over: _Optional[_Union[TypeOver, _Mapping]] = ..., status_query: _Optional[_Union[StatusQuery, _Mapping]] = ..., status_part: _Optional[_Union[StatusPart, _Mapping]] = ..., link_offer: _Optional[_Union[LinkOffer, _Mapping]] = ..., link_map: _Optional[_Union[LinkMap, _Mapping]] = ..., link_mapped: _Optional[_Union[LinkMapped, _Mapping]] = ..., link_over: _Optional[_Union[LinkOver, _Mapping]] = ..., link_more: _Optional[_Union[LinkMore, _Mapping]] = ..., link_settle: _Optional[_Union[LinkSettle, _Mapping]] = ..., link_duplex: _Optional[_Union[LinkDuplex, _Mapping]] = ..., link_duplex_made: _Optional[_Union[LinkDuplexMade, _Mapping]] = ..., large_ask: _Optional[_Union[LargeAsk, _Mapping]] = ..., large_here: _Optional[_Union[LargeHere, _Mapping]] = ..., large_coming: _Optional[_Union[LargeComing, _Mapping]] = ..., large_lacking: _Optional[_Union[LargeLacking, _Mapping]] = ..., large_reach: _Optional[_Union[LargeReach, _Mapping]] = ..., large_token: _Optional[_Union[LargeToken, _Mapping]] = ..., large_unwanted: _Optional[_Union[LargeUnwanted, _Mapping]] = ..., leave_asked: _Optional[_Union[LeaveAsked, _Mapping]] = ...) -> None: ...

class LinkOffer(_message.Message):
    __slots__ = ("directory", "token", "attempt", "rdma_address")
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RDMA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    directory: bytes
    token: bytes
    attempt: int
    rdma_address: bytes
    def __init__(self, directory: _Optional[bytes] = ..., token: _Optional[bytes] = ..., attempt: _Optional[int] = ..., rdma_address: _Optional[bytes] = ...) -> None: ...

class LinkOver(_message.Message):
    __slots__ = ("attempt", "begin")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    begin: bool
    def __init__(self, attempt: _Optional[int] = ..., begin: bool = ...) -> None: ...

class LinkMore(_message.Message):
    __slots__ = ("number", "step", "rdma_address", "token", "mine")
    class Step(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ASK: _ClassVar[LinkMore.Step]
        ANSWER: _ClassVar[LinkMore.Step]
        OVER: _ClassVar[LinkMore.Step]
    ASK: LinkMore.Step
    ANSWER: LinkMore.Step
    OVER: LinkMore.Step
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RDMA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    MINE_FIELD_NUMBER: _ClassVar[int]
    number: int
    step: LinkMore.Step
    rdma_address: bytes
    token: bytes
    mine: bool
    def __init__(self, number: _Optional[int] = ..., step: _Optional[_Union[LinkMore.Step, str]] = ..., rdma_address: _Optional[bytes] = ..., token: _Optional[bytes] = ..., mine: bool = ...) -> None: ...

class LinkSettle(_message.Message):
    __slots__ = ("number", "settled")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    number: int
    settled: bool
    def __init__(self, number: _Optional[int] = ..., settled: bool = ...) -> None: ...

class LinkMap(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: int
    def __init__(self, key: _Optional[int] = ...) -> None: ...

class LinkMapped(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: int
    def __init__(self, key: _Optional[int] = ...) -> None: ...

class LinkDuplex(_message.Message):
    __slots__ = ("number", "port", "link")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    number: int
    port: int
    link: int
    def __init__(self, number: _Optional[int] = ..., port: _Optional[int] = ..., link: _Optional[int] = ...) -> None: ...

class LinkDuplexMade(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class LeaveAsked(_message.Message):
    __slots__ = ("by",)
    BY_FIELD_NUMBER: _ClassVar[int]
    by: str
    def __init__(self, by: _Optional[str] = ...) -> None: ...

class StatusQuery(_message.Message):
    __slots__ = ("number", "figures")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    number: int
    figures: bool
    def __init__(self, number: _Optional[int] = ..., figures: bool = ...) -> None: ...

class StatusPart(_message.Message):
    __slots__ = ("number", "json", "last")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    number: int
    json: bytes
    last: bool
    def __init__(self, number: _Optional[int] = ..., json: _Optional[bytes] = ..., last: bool = ...) -> None: ...

class LargeAsk(_message.Message):
    __slots__ = ("number", "large_id", "size", "delivered")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LARGE_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    number: int
    large_id: int
    size: int
    delivered: bool
    def __init__(self, number: _Optional[int] = ..., large_id: _Optional[int] = ..., size: _Optional[int] = ..., delivered: bool = ...) -> None: ...

class LargeHere(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class LargeUnwanted(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class LargeComing(_message.Message):
    __slots__ = ("number", "reached", "waits")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    number: int
    reached: int
    waits: bool
    def __init__(self, number: _Optional[int] = ..., reached: _Optional[int] = ..., waits: bool = ...) -> None: ...

class LargeLacking(_message.Message):
    __slots__ = ("number", "why")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    number: int
    why: str
    def __init__(self, number: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class LargeReach(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class LargeToken(_message.Message):
    __slots__ = ("number", "token")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    number: int
    token: bytes
    def __init__(self, number: _Optional[int] = ..., token: _Optional[bytes] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("node_id", "incarnation", "address", "pid", "uid", "name", "view_floor", "host", "endpoint", "fabrics", "rdma_network")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VIEW_FLOOR_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    FABRICS_FIELD_NUMBER: _ClassVar[int]
    RDMA_NETWORK_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    incarnation: int
    address: str
    pid: int
    uid: int
    name: str
    view_floor: int
    host: bytes
    endpoint: str
    fabrics: _containers.RepeatedScalarFieldContainer[str]
    rdma_network: str
    def __init__(self, node_id: _Optional[int] = ..., incarnation: _Optional[int] = ..., address: _Optional[str] = ..., pid: _Optional[int] = ..., uid: _Optional[int] = ..., name: _Optional[str] = ..., view_floor: _Optional[int] = ..., host: _Optional[bytes] = ..., endpoint: _Optional[str] = ..., fabrics: _Optional[_Iterable[str]] = ..., rdma_network: _Optional[str] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("spec", "topic_id", "members", "senders", "fresh", "born_view_id", "born_revision", "renewal")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SENDERS_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    BORN_VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    BORN_REVISION_FIELD_NUMBER: _ClassVar[int]
    RENEWAL_FIELD_NUMBER: _ClassVar[int]
    spec: _attach_pb2.TopicSpec
    topic_id: int
    members: _containers.RepeatedScalarFieldContainer[int]
    senders: _containers.RepeatedScalarFieldContainer[int]
    fresh: _containers.RepeatedScalarFieldContainer[int]
    born_view_id: int
    born_revision: int
    renewal: int
    def __init__(self, spec: _Optional[_Union[_attach_pb2.TopicSpec, _Mapping]] = ..., topic_id: _Optional[int] = ..., members: _Optional[_Iterable[int]] = ..., senders: _Optional[_Iterable[int]] = ..., fresh: _Optional[_Iterable[int]] = ..., born_view_id: _Optional[int] = ..., born_revision: _Optional[int] = ..., renewal: _Optional[int] = ...) -> None: ...

class View(_message.Message):
    __slots__ = ("group_id", "view_id", "members", "topics", "settings", "revision")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    group_id: int
    view_id: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    settings: Settings
    revision: int
    def __init__(self, group_id: _Optional[int] = ..., view_id: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ..., settings: _Optional[_Union[Settings, _Mapping]] = ..., revision: _Optional[int] = ...) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("group_id", "view_id", "revision", "base_view_id", "base_revision", "members", "settings", "topics", "gone", "ballot")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    BASE_VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_REVISION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    group_id: int
    view_id: int
    revision: int
    base_view_id: int
    base_revision: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    settings: Settings
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    gone: _containers.RepeatedScalarFieldContainer[int]
    ballot: int
    def __init__(self, group_id: _Optional[int] = ..., view_id: _Optional[int] = ..., revision: _Optional[int] = ..., base_view_id: _Optional[int] = ..., base_revision: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., settings: _Optional[_Union[Settings, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ..., gone: _Optional[_Iterable[int]] = ..., ballot: _Optional[int] = ...) -> None: ...

class Settings(_message.Message):
    __slots__ = ("version", "suspect_timeout_s", "contacts", "form")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    CONTACTS_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    version: int
    suspect_timeout_s: float
    contacts: _containers.RepeatedScalarFieldContainer[str]
    form: str
    def __init__(self, version: _Optional[int] = ..., suspect_timeout_s: _Optional[float] = ..., contacts: _Optional[_Iterable[str]] = ..., form: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("member", "view_id", "group_id", "settings")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    member: Member
    view_id: int
    group_id: int
    settings: Settings
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., view_id: _Optional[int] = ..., group_id: _Optional[int] = ..., settings: _Optional[_Union[Settings, _Mapping]] = ...) -> None: ...

class TopicRequest(_message.Message):
    __slots__ = ("request_id", "view_id", "declare", "role", "deletion")
    class Role(_message.Message):
        __slots__ = ("topic", "member", "sender")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        MEMBER_FIELD_NUMBER: _ClassVar[int]
        SENDER_FIELD_NUMBER: _ClassVar[int]
        topic: str
        member: bool
        sender: bool
        def __init__(self, topic: _Optional[str] = ..., member: bool = ..., sender: bool = ...) -> None: ...
    class Deletion(_message.Message):
        __slots__ = ("topic", "born_view_id", "born_revision", "renews", "undeclared")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        BORN_VIEW_ID_FIELD_NUMBER: _ClassVar[int]
        BORN_REVISION_FIELD_NUMBER: _ClassVar[int]
        RENEWS_FIELD_NUMBER: _ClassVar[int]
        UNDECLARED_FIELD_NUMBER: _ClassVar[int]
        topic: str
        born_view_id: int
        born_revision: int
        renews: bool
        undeclared: bool
        def __init__(self, topic: _Optional[str] = ..., born_view_id: _Optional[int] = ..., born_revision: _Optional[int] = ..., renews: bool = ..., undeclared: bool = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    DECLARE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    DELETION_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    view_id: int
    declare: _attach_pb2.TopicSpec
    role: TopicRequest.Role
    deletion: TopicRequest.Deletion
    def __init__(self, request_id: _Optional[int] = ..., view_id: _Optional[int] = ..., declare: _Optional[_Union[_attach_pb2.TopicSpec, _Mapping]] = ..., role: _Optional[_Union[TopicRequest.Role, _Mapping]] = ..., deletion: _Optional[_Union[TopicRequest.Deletion, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("view", "ballot", "base_view_id", "joiners")
    VIEW_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    BASE_VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    JOINERS_FIELD_NUMBER: _ClassVar[int]
    view: View
    ballot: int
    base_view_id: int
    joiners: int
    def __init__(self, view: _Optional[_Union[View, _Mapping]] = ..., ballot: _Optional[int] = ..., base_view_id: _Optional[int] = ..., joiners: _Optional[int] = ...) -> None: ...

class Prepared(_message.Message):
    __slots__ = ("view_id", "ballot")
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    view_id: int
    ballot: int
    def __init__(self, view_id: _Optional[int] = ..., ballot: _Optional[int] = ...) -> None: ...

class Lacking(_message.Message):
    __slots__ = ("view_id", "ballot", "lacks")
    class Lack(_message.Message):
        __slots__ = ("node_id", "why")
        NODE_ID_FIELD_NUMBER: _ClassVar[int]
        WHY_FIELD_NUMBER: _ClassVar[int]
        node_id: int
        why: str
        def __init__(self, node_id: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    LACKS_FIELD_NUMBER: _ClassVar[int]
    view_id: int
    ballot: int
    lacks: _containers.RepeatedCompositeFieldContainer[Lacking.Lack]
    def __init__(self, view_id: _Optional[int] = ..., ballot: _Optional[int] = ..., lacks: _Optional[_Iterable[_Union[Lacking.Lack, _Mapping]]] = ...) -> None: ...

class LeftOut(_message.Message):
    __slots__ = ("view_id", "ballot", "why")
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    view_id: int
    ballot: int
    why: str
    def __init__(self, view_id: _Optional[int] = ..., ballot: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class Installed(_message.Message):
    __slots__ = ("view_id", "ballot", "group_id")
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    view_id: int
    ballot: int
    group_id: int
    def __init__(self, view_id: _Optional[int] = ..., ballot: _Optional[int] = ..., group_id: _Optional[int] = ...) -> None: ...

class RowOffer(_message.Message):
    __slots__ = ("view_id", "ballot", "group_id", "remote")
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    view_id: int
    ballot: int
    group_id: int
    remote: RemoteRow
    def __init__(self, view_id: _Optional[int] = ..., ballot: _Optional[int] = ..., group_id: _Optional[int] = ..., remote: _Optional[_Union[RemoteRow, _Mapping]] = ...) -> None: ...

class RemoteRow(_message.Message):
    __slots__ = ("layout_hash", "row_size", "token", "rdma_address")
    LAYOUT_HASH_FIELD_NUMBER: _ClassVar[int]
    ROW_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    RDMA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    layout_hash: int
    row_size: int
    token: bytes
    rdma_address: bytes
    def __init__(self, layout_hash: _Optional[int] = ..., row_size: _Optional[int] = ..., token: _Optional[bytes] = ..., rdma_address: _Optional[bytes] = ...) -> None: ...

class EndpointRemoved(_message.Message):
    __slots__ = ("guid",)
    GUID_FIELD_NUMBER: _ClassVar[int]
    guid: bytes
    def __init__(self, guid: _Optional[bytes] = ...) -> None: ...

class TypeHeld(_message.Message):
    __slots__ = ("topic", "type", "number")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    type: bytes
    number: int
    def __init__(self, topic: _Optional[str] = ..., type: _Optional[bytes] = ..., number: _Optional[int] = ...) -> None: ...

class TypeKnown(_message.Message):
    __slots__ = ("topic", "key", "view_id", "problem", "number")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    key: bytes
    view_id: int
    problem: str
    number: int
    def __init__(self, topic: _Optional[str] = ..., key: _Optional[bytes] = ..., view_id: _Optional[int] = ..., problem: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class TypeOver(_message.Message):
    __slots__ = ("topic", "key")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    topic: str
    key: bytes
    def __init__(self, topic: _Optional[str] = ..., key: _Optional[bytes] = ...) -> None: ...

class HistoryChunk(_message.Message):
    __slots__ = ("messages", "last", "number", "start", "problem", "over", "types")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[HistoryMessage]
    last: bool
    number: int
    start: HistoryStart
    problem: str
    over: _containers.RepeatedCompositeFieldContainer[KeyOver]
    types: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, messages: _Optional[_Iterable[_Union[HistoryMessage, _Mapping]]] = ..., last: bool = ..., number: _Optional[int] = ..., start: _Optional[_Union[HistoryStart, _Mapping]] = ..., problem: _Optional[str] = ..., over: _Optional[_Iterable[_Union[KeyOver, _Mapping]]] = ..., types: _Optional[_Iterable[bytes]] = ...) -> None: ...

class HistoryStart(_message.Message):
    __slots__ = ("lives", "after", "until_view", "relayed", "table")
    LIVES_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    UNTIL_VIEW_FIELD_NUMBER: _ClassVar[int]
    RELAYED_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    lives: _containers.RepeatedCompositeFieldContainer[Life]
    after: Order
    until_view: int
    relayed: _containers.RepeatedCompositeFieldContainer[RelayedWriter]
    table: KeyTable
    def __init__(self, lives: _Optional[_Iterable[_Union[Life, _Mapping]]] = ..., after: _Optional[_Union[Order, _Mapping]] = ..., until_view: _Optional[int] = ..., relayed: _Optional[_Iterable[_Union[RelayedWriter, _Mapping]]] = ..., table: _Optional[_Union[KeyTable, _Mapping]] = ...) -> None: ...

class KeyTable(_message.Message):
    __slots__ = ("behind", "given_up", "given_up_keys", "said_ns", "limited")
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_KEYS_FIELD_NUMBER: _ClassVar[int]
    SAID_NS_FIELD_NUMBER: _ClassVar[int]
    LIMITED_FIELD_NUMBER: _ClassVar[int]
    behind: Order
    given_up: int
    given_up_keys: int
    said_ns: int
    limited: int
    def __init__(self, behind: _Optional[_Union[Order, _Mapping]] = ..., given_up: _Optional[int] = ..., given_up_keys: _Optional[int] = ..., said_ns: _Optional[int] = ..., limited: _Optional[int] = ...) -> None: ...

class KeyOver(_message.Message):
    __slots__ = ("key", "ns", "waits")
    KEY_FIELD_NUMBER: _ClassVar[int]
    NS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    key: int
    ns: int
    waits: bool
    def __init__(self, key: _Optional[int] = ..., ns: _Optional[int] = ..., waits: bool = ...) -> None: ...

class RelayedWriter(_message.Message):
    __slots__ = ("writer", "source_ns")
    WRITER_FIELD_NUMBER: _ClassVar[int]
    SOURCE_NS_FIELD_NUMBER: _ClassVar[int]
    writer: int
    source_ns: int
    def __init__(self, writer: _Optional[int] = ..., source_ns: _Optional[int] = ...) -> None: ...

class HistoryRequest(_message.Message):
    __slots__ = ("number", "topic", "view_id", "from_disk", "empty", "lives", "end", "until")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_DISK_FIELD_NUMBER: _ClassVar[int]
    EMPTY_FIELD_NUMBER: _ClassVar[int]
    LIVES_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    number: int
    topic: str
    view_id: int
    from_disk: bool
    empty: bool
    lives: _containers.RepeatedCompositeFieldContainer[Life]
    end: Order
    until: Order
    def __init__(self, number: _Optional[int] = ..., topic: _Optional[str] = ..., view_id: _Optional[int] = ..., from_disk: bool = ..., empty: bool = ..., lives: _Optional[_Iterable[_Union[Life, _Mapping]]] = ..., end: _Optional[_Union[Order, _Mapping]] = ..., until: _Optional[_Union[Order, _Mapping]] = ...) -> None: ...

class HistoryMore(_message.Message):
    __slots__ = ("number", "taken", "stop")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    number: int
    taken: int
    stop: bool
    def __init__(self, number: _Optional[int] = ..., taken: _Optional[int] = ..., stop: bool = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("view_id", "sequence")
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    view_id: int
    sequence: int
    def __init__(self, view_id: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class Life(_message.Message):
    __slots__ = ("name", "first_view", "after")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FIRST_VIEW_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    name: str
    first_view: int
    after: Order
    def __init__(self, name: _Optional[str] = ..., first_view: _Optional[int] = ..., after: _Optional[_Union[Order, _Mapping]] = ...) -> None: ...

class Holders(_message.Message):
    __slots__ = ("view_id", "members")
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    view_id: int
    members: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, view_id: _Optional[int] = ..., members: _Optional[_Iterable[int]] = ...) -> None: ...

class Successor(_message.Message):
    __slots__ = ("holders", "required", "renews")
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    RENEWS_FIELD_NUMBER: _ClassVar[int]
    holders: Holders
    required: _containers.RepeatedScalarFieldContainer[int]
    renews: bool
    def __init__(self, holders: _Optional[_Union[Holders, _Mapping]] = ..., required: _Optional[_Iterable[int]] = ..., renews: bool = ...) -> None: ...

class RestartQuery(_message.Message):
    __slots__ = ("topic", "view_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    view_id: int
    def __init__(self, topic: _Optional[str] = ..., view_id: _Optional[int] = ...) -> None: ...

class RestartSummary(_message.Message):
    __slots__ = ("topic", "view_id", "lives", "holders", "whole", "successor", "seen_view", "begin", "end", "count", "problem", "serving", "type_name", "type_hash")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    LIVES_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    SUCCESSOR_FIELD_NUMBER: _ClassVar[int]
    SEEN_VIEW_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    TYPE_NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_HASH_FIELD_NUMBER: _ClassVar[int]
    topic: str
    view_id: int
    lives: _containers.RepeatedCompositeFieldContainer[Life]
    holders: Holders
    whole: bool
    successor: Successor
    seen_view: int
    begin: Order
    end: Order
    count: int
    problem: str
    serving: bool
    type_name: str
    type_hash: bytes
    def __init__(self, topic: _Optional[str] = ..., view_id: _Optional[int] = ..., lives: _Optional[_Iterable[_Union[Life, _Mapping]]] = ..., holders: _Optional[_Union[Holders, _Mapping]] = ..., whole: bool = ..., successor: _Optional[_Union[Successor, _Mapping]] = ..., seen_view: _Optional[int] = ..., begin: _Optional[_Union[Order, _Mapping]] = ..., end: _Optional[_Union[Order, _Mapping]] = ..., count: _Optional[int] = ..., problem: _Optional[str] = ..., serving: bool = ..., type_name: _Optional[str] = ..., type_hash: _Optional[bytes] = ...) -> None: ...

class RestartRecord(_message.Message):
    __slots__ = ("topic", "view_id", "successor")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    SUCCESSOR_FIELD_NUMBER: _ClassVar[int]
    topic: str
    view_id: int
    successor: Successor
    def __init__(self, topic: _Optional[str] = ..., view_id: _Optional[int] = ..., successor: _Optional[_Union[Successor, _Mapping]] = ...) -> None: ...

class RestartRecorded(_message.Message):
    __slots__ = ("topic", "view_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    view_id: int
    def __init__(self, topic: _Optional[str] = ..., view_id: _Optional[int] = ...) -> None: ...

class HistoryMessage(_message.Message):
    __slots__ = ("payload", "sender", "sequence", "view_id", "source_ns", "writer_id", "reception_ns", "relay", "missing", "tag", "key", "large")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_NS_FIELD_NUMBER: _ClassVar[int]
    WRITER_ID_FIELD_NUMBER: _ClassVar[int]
    RECEPTION_NS_FIELD_NUMBER: _ClassVar[int]
    RELAY_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    LARGE_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    sender: int
    sequence: int
    view_id: int
    source_ns: int
    writer_id: int
    reception_ns: int
    relay: int
    missing: int
    tag: int
    key: int
    large: bool
    def __init__(self, payload: _Optional[bytes] = ..., sender: _Optional[int] = ..., sequence: _Optional[int] = ..., view_id: _Optional[int] = ..., source_ns: _Optional[int] = ..., writer_id: _Optional[int] = ..., reception_ns: _Optional[int] = ..., relay: _Optional[int] = ..., missing: _Optional[int] = ..., tag: _Optional[int] = ..., key: _Optional[int] = ..., large: bool = ...) -> None: ...

class Farewell(_message.Message):
    __slots__ = ("kind", "text", "cast_out")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CAST_OUT_FIELD_NUMBER: _ClassVar[int]
    kind: str
    text: str
    cast_out: bool
    def __init__(self, kind: _Optional[str] = ..., text: _Optional[str] = ..., cast_out: bool = ...) -> None: ...

class RelayQuery(_message.Message):
    __slots__ = ("number", "client", "turn", "writer", "group_id", "view_id", "topic", "on_disk")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ON_DISK_FIELD_NUMBER: _ClassVar[int]
    number: int
    client: bytes
    turn: int
    writer: int
    group_id: int
    view_id: int
    topic: str
    on_disk: bool
    def __init__(self, number: _Optional[int] = ..., client: _Optional[bytes] = ..., turn: _Optional[int] = ..., writer: _Optional[int] = ..., group_id: _Optional[int] = ..., view_id: _Optional[int] = ..., topic: _Optional[str] = ..., on_disk: bool = ...) -> None: ...

class RelayAnswer(_message.Message):
    __slots__ = ("number", "sent_ns", "refusal", "view_id")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SENT_NS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    number: int
    sent_ns: int
    refusal: str
    view_id: int
    def __init__(self, number: _Optional[int] = ..., sent_ns: _Optional[int] = ..., refusal: _Optional[str] = ..., view_id: _Optional[int] = ...) -> None: ...
