"""Plain values of Spindle to messages of attach.proto and back, for both ends of an attachment.

Why: generated classes stay at the border. The node and the client handle `TopicSpec`, `Endpoint`, `ViewInfo`, and what
is checked when those are made is checked for every message that comes in.
"""

from __future__ import annotations

from spindle.group.endpoints import Endpoint
from spindle.group.events import Event, ViewInfo
from spindle.group.leases import Lease
from spindle.group.position import Position
from spindle.group.topics import TopicInfo, TopicSpec
from spindle.proto import attach_pb2 as pb

PROTOCOL_VERSION = 16  # raise it whenever an older end would misunderstand attach.proto or the layout of shared memory


def spec_to_wire(spec: TopicSpec) -> pb.TopicSpec:
    return pb.TopicSpec(
        name=spec.name, type_name=spec.type_name, type_hash=spec.type_hash, level=int(spec.level),
        size_max=spec.size_max, window=spec.window, history_depth=spec.history_depth, history_bytes=spec.history_bytes,
        departure=spec.departure, effects=spec.effects, timing=spec.timing, samples_max=spec.samples_max,
        keys_max=spec.keys_max, cleanup_ns=spec.cleanup_ns, ranks=spec.ranks)


def spec_from_wire(message: pb.TopicSpec) -> TopicSpec:
    """Raises ConfigError if a value is impossible."""
    return TopicSpec(
        name=message.name, type_name=message.type_name, type_hash=message.type_hash,
        level=message.level,  # type: ignore[arg-type]  # TopicSpec checks it and makes it a Level
        size_max=message.size_max, window=message.window, history_depth=message.history_depth,
        history_bytes=message.history_bytes, departure=message.departure, effects=message.effects,
        timing=message.timing, samples_max=message.samples_max, keys_max=message.keys_max,
        cleanup_ns=message.cleanup_ns, ranks=message.ranks)


def lease_to_wire(lease: Lease | None) -> pb.Lease | None:
    if lease is None:
        return None
    return pb.Lease(duration_ns=lease.duration_ns, lapse=lease.lapse, revival=lease.revival)


def lease_from_wire(message: pb.Lease) -> Lease:
    """Raises ConfigError if a value is impossible."""
    return Lease(message.duration_ns, message.lapse, message.revival)


def topic_to_wire(topic: TopicInfo) -> pb.TopicInfo:
    return pb.TopicInfo(
        spec=spec_to_wire(topic.spec), topic_id=topic.topic_id, members=topic.members, senders=topic.senders,
        awaits_definition=topic.awaits_definition)


def topic_from_wire(message: pb.TopicInfo) -> TopicInfo:
    return TopicInfo(
        spec_from_wire(message.spec), message.topic_id, tuple(message.members), tuple(message.senders),
        message.awaits_definition)


def view_to_wire(view: ViewInfo) -> pb.View:
    return pb.View(view_id=view.view_id, node_ids=view.node_ids, my_rank=view.my_rank, group_id=view.group_id)


def view_from_wire(message: pb.View) -> ViewInfo:
    return ViewInfo(message.view_id, tuple(message.node_ids), message.my_rank, message.group_id)


def position_to_wire(position: Position) -> pb.Position:
    return pb.Position(group_id=position.group_id, view_id=position.view_id, sequence=position.sequence)


def position_from_wire(message: pb.Position) -> Position:
    return Position(message.group_id, message.view_id, message.sequence)


def endpoint_to_wire(endpoint: Endpoint) -> pb.Endpoint:
    return pb.Endpoint(
        guid=endpoint.guid, node_id=endpoint.node_id, is_writer=endpoint.is_writer, topic=endpoint.topic,
        endpoint=endpoint.endpoint, app_name=endpoint.app_name, pid=endpoint.pid, writer_id=endpoint.writer_id,
        relay=endpoint.relay, kind=endpoint.kind)


def endpoint_from_wire(message: pb.Endpoint) -> Endpoint:
    return Endpoint(
        guid=message.guid, node_id=message.node_id, is_writer=message.is_writer, topic=message.topic,
        endpoint=message.endpoint, app_name=message.app_name, pid=message.pid, writer_id=message.writer_id,
        relay=message.relay, kind=message.kind)


def event_to_wire(event: Event) -> pb.Event:
    message = pb.Event(kind=event.kind, text=event.text)
    if event.endpoint is not None:
        message.endpoint.CopyFrom(endpoint_to_wire(event.endpoint))
    elif event.view is not None:
        message.view.CopyFrom(view_to_wire(event.view))
    elif event.topic is not None:
        message.topic.CopyFrom(topic_to_wire(event.topic))
    return message


def event_from_wire(message: pb.Event) -> Event:
    subject = message.WhichOneof("subject")
    return Event(
        kind=message.kind, text=message.text,
        endpoint=endpoint_from_wire(message.endpoint) if subject == "endpoint" else None,
        view=view_from_wire(message.view) if subject == "view" else None,
        topic=topic_from_wire(message.topic) if subject == "topic" else None)
