"""Views, trims and membership messages as protobuf bytes.

Why apart from the values: generated classes stay at the border, and what arrives is checked once, here, when the values
are made. Anything that isn't a valid view is a MembershipError, never a half-made value.

Rules: encoding is deterministic for one version of the software; members compare the bytes of what they acknowledge.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from google.protobuf.message import DecodeError

from spindle.errors import ConfigError, MembershipError
from spindle.group.codec import spec_from_wire, spec_to_wire
from spindle.group.settings import UNSAID, Settings
from spindle.group.topics import TOPICS_MAX, TopicSpec
from spindle.group.view import NODES_MAX, VIEW_FLOOR_MAX, Member, Renewal, Topic, View
from spindle.membership import messages as m
from spindle.proto import node_pb2 as pb

WHY_MAX = 300  # characters of why one node lacks another


def member_to_wire(member: Member) -> pb.Member:
    return pb.Member(node_id=member.node_id, incarnation=member.incarnation, address=member.address, pid=member.pid,
                     uid=member.uid, name=member.name, view_floor=member.view_floor, host=member.host,
                     endpoint=member.endpoint, fabrics=member.fabrics, rdma_network=member.rdma_network)


def member_from_wire(message: pb.Member) -> Member:
    if message.view_floor > VIEW_FLOOR_MAX:
        raise MembershipError(f"node {message.node_id} says that its journals know of view {message.view_floor}, which "
                              "can't be")
    return Member(message.node_id, message.incarnation, message.address, message.pid, message.uid, message.name,
                  message.view_floor, message.host, message.endpoint, tuple(message.fabrics), message.rdma_network)


def settings_to_wire(settings: Settings) -> pb.Settings | None:
    if not settings.version:
        return None
    return pb.Settings(version=settings.version, suspect_timeout_s=settings.suspect_timeout_s,
                       contacts=settings.contacts, form=settings.form)


def settings_from_wire(message: pb.Settings) -> Settings:
    """Raises MembershipError if a value is impossible."""
    if not message.version:
        return UNSAID
    try:
        return Settings(message.version, message.suspect_timeout_s, tuple(message.contacts), message.form)
    except ConfigError as error:
        raise MembershipError(f"impossible settings came: {error}") from error


def view_to_wire(view: View) -> pb.View:
    return pb.View.FromString(encode_view(view))


def view_from_wire(message: pb.View) -> View:
    """Raises MembershipError if the view contradicts itself."""
    try:
        topics = tuple([_topic_of(topic.SerializeToString()) for topic in message.topics])
    except ConfigError as error:
        raise MembershipError(f"a view came with an impossible topic: {error}") from error
    view = View(message.group_id, message.view_id, tuple(member_from_wire(one) for one in message.members), topics,
                settings_from_wire(message.settings), message.revision)
    _check(view, view.topics)
    return view


# A node that is told whole views has seen most of their topics in the view before: these come from a cache.


@functools.lru_cache(maxsize=4 * TOPICS_MAX)
def _topic_of(data: bytes) -> Topic:
    return _topic_from_wire(pb.Topic.FromString(data))


def _topic_from_wire(topic: pb.Topic) -> Topic:
    if topic.renewal > max(Renewal):
        raise MembershipError(f"topic {topic.spec.name!r} says renewal {topic.renewal}; do all nodes run the same "
                              "release?")
    return Topic(spec_from_wire(topic.spec), topic.topic_id, tuple(topic.members), tuple(topic.senders),
                 tuple(topic.fresh), (topic.born_view_id, topic.born_revision), Renewal(topic.renewal))


def _topic_to_wire(topic: Topic) -> pb.Topic:
    return pb.Topic(spec=spec_to_wire(topic.spec), topic_id=topic.topic_id, members=topic.members,
                    senders=topic.senders, fresh=topic.fresh, born_view_id=topic.born[0], born_revision=topic.born[1],
                    renewal=topic.renewal)


@functools.lru_cache(maxsize=4 * TOPICS_MAX)
def _field_of(topic: Topic) -> bytes:
    """The topic as one of `topics` in a View."""
    return pb.View(topics=[_topic_to_wire(topic)]).SerializeToString(deterministic=True)


def _check(view: View, topics: Sequence[Topic]) -> None:
    """MembershipError if the view contradicts itself. `topics`: those of the view that were not checked before."""
    nodes = set(view.node_ids)
    fault = ""
    if len(nodes) != len(view.members) or len(nodes) > NODES_MAX:
        fault = "members twice, or too many"
    elif topics and view.topic_count != len(view.topics):
        fault = "a topic twice"
    elif topics and len({topic.topic_id for topic in view.topics}) != len(view.topics):
        fault = "a topic id twice"
    for topic in topics:
        if not 1 <= topic.topic_id <= TOPICS_MAX:
            fault = f"topic id {topic.topic_id}"
        if not (nodes.issuperset(topic.members) and set(topic.members).issuperset(topic.senders + topic.fresh)):
            fault = f"a wrong subgroup of topic {topic.spec.name!r}"
        if topic.members and not topic.is_declared:
            fault = f"members of topic {topic.spec.name!r}, whose definition is awaited"
    if fault:
        raise MembershipError(f"view {view.view_id} contradicts itself: {fault}; do all nodes run the same release?")


def encode_view(view: View) -> bytes:
    head = pb.View(group_id=view.group_id, view_id=view.view_id,
                   members=[member_to_wire(member) for member in view.members],
                   settings=settings_to_wire(view.settings), revision=view.revision)
    return b"".join([head.SerializeToString(deterministic=True), *map(_field_of, view.topics)])


def encode_proposal(view: View, base: View, ballot: int) -> bytes:
    """What differs in `view` from `base`, which it follows: so the size depends on what changes."""
    before = {topic.topic_id: topic for topic in base.topics}
    changed = [topic for topic in view.topics if before.pop(topic.topic_id, None) is not topic]
    return pb.Proposal(
        group_id=view.group_id, view_id=view.view_id, revision=view.revision,
        ballot=ballot, base_view_id=base.view_id, base_revision=base.revision,
        members=[member_to_wire(member) for member in view.members], settings=settings_to_wire(view.settings),
        topics=map(_topic_to_wire, changed), gone=before).SerializeToString(deterministic=True)


def decode_proposal(data: bytes, base: View, ballot: int) -> View | None:
    """The proposed view; topics that stay what they were are those of `base`. None if it is the proposal of another
    ballot. Raises MembershipError if `data` is no proposal, or not for what follows `base`."""
    message = _proposal_of(data)
    if message.ballot != ballot:
        return None
    if (message.base_view_id, message.base_revision) != base.state:
        raise MembershipError(f"view {message.view_id}.{message.revision} was proposed after view "
                              f"{message.base_view_id}.{message.base_revision}, and this node has view "
                              f"{base.view_id}.{base.revision}")
    try:
        news = [_topic_from_wire(topic) for topic in message.topics]
    except ConfigError as error:
        raise MembershipError(f"a view came with an impossible topic: {error}") from error
    gone, changed = set(message.gone), {topic.topic_id: topic for topic in news}
    topics = [changed.pop(topic.topic_id, topic) for topic in base.topics if topic.topic_id not in gone]
    members = tuple(map(member_from_wire, message.members))
    view = View(message.group_id, message.view_id, members, tuple(topics) + tuple(changed.values()),
                settings_from_wire(message.settings), message.revision)
    everybody_stays = members[:len(base.members)] == base.members
    _check(view, news if everybody_stays else view.topics)
    return view


def decode_newcomers(data: bytes) -> tuple[tuple[Member, ...], Settings]:
    """Members and settings of a proposal, whatever view it follows. Raises MembershipError if it is none."""
    message = _proposal_of(data)
    return tuple(map(member_from_wire, message.members)), settings_from_wire(message.settings)


def _proposal_of(data: bytes) -> pb.Proposal:
    try:
        return pb.Proposal.FromString(data)
    except DecodeError as error:
        raise MembershipError(f"a proposed view of {len(data)} bytes cannot be read: {error}") from error


def encode_trim(view_id: int, trims: Mapping[int, tuple[int, ...]]) -> bytes:
    return pb.Trim(
        view_id=view_id,
        subgroups=[pb.Trim.Subgroup(topic_id=topic_id, counts=counts) for topic_id, counts in sorted(trims.items())],
    ).SerializeToString(deterministic=True)


def decode_trim(data: bytes) -> tuple[int, dict[int, tuple[int, ...]]]:
    """View id and the counts by topic id. Raises MembershipError if `data` is not a trim."""
    try:
        message = pb.Trim.FromString(data)
    except DecodeError as error:
        raise MembershipError(f"a trim of {len(data)} bytes cannot be read: {error}") from error
    return message.view_id, {one.topic_id: tuple(one.counts) for one in message.subgroups}


def message_to_wire(message: m.Message) -> pb.PeerMessage:
    if isinstance(message, m.CurrentView):
        return pb.PeerMessage(current_view=view_to_wire(message.view))
    if isinstance(message, m.JoinRequest):
        return pb.PeerMessage(join=pb.JoinRequest(
            member=member_to_wire(message.member), group_id=message.group_id, view_id=message.view_id,
            settings=settings_to_wire(message.settings)))
    if isinstance(message, m.TopicRequest):
        request = pb.TopicRequest(request_id=message.request_id, view_id=message.view_id)
        if isinstance(message.wish, TopicSpec):
            request.declare.CopyFrom(spec_to_wire(message.wish))
        elif isinstance(message.wish, m.Deletion):
            request.deletion.CopyFrom(pb.TopicRequest.Deletion(
                topic=message.wish.topic, born_view_id=message.wish.born[0], born_revision=message.wish.born[1],
                renews=message.wish.renews, undeclared=message.wish.undeclared))
        else:
            wish = message.wish
            request.role.CopyFrom(pb.TopicRequest.Role(topic=wish.topic, member=wish.member, sender=wish.sender))
        return pb.PeerMessage(topic_request=request)
    if isinstance(message, m.Rejection):
        return pb.PeerMessage(
            rejection=pb.Rejection(request_id=message.request_id, kind=message.kind, text=message.text))
    if isinstance(message, m.Admission):
        return pb.PeerMessage(admission=pb.Admission(
            view=view_to_wire(message.view), ballot=message.ballot, base_view_id=message.base,
            joiners=message.joiners))
    if isinstance(message, m.Prepared):
        return pb.PeerMessage(prepared=pb.Prepared(view_id=message.view_id, ballot=message.ballot))
    if isinstance(message, m.Lacking):
        return pb.PeerMessage(lacking=pb.Lacking(
            view_id=message.view_id, ballot=message.ballot,
            lacks=[pb.Lacking.Lack(node_id=node_id, why=why[:WHY_MAX]) for node_id, why in message.lacks]))
    if isinstance(message, m.LeftOut):
        return pb.PeerMessage(left_out=pb.LeftOut(view_id=message.view_id, ballot=message.ballot, why=message.why))
    return pb.PeerMessage(installed=pb.Installed(
        group_id=message.group_id, view_id=message.view_id, ballot=message.ballot))


def message_from_wire(message: pb.PeerMessage) -> m.Message | None:
    """The membership message in a frame, None if it is of another kind. Raises MembershipError or ConfigError if it is
    malformed."""
    kind = message.WhichOneof("body")
    if kind == "current_view":
        return m.CurrentView(view_from_wire(message.current_view))
    if kind == "join":
        return m.JoinRequest(member_from_wire(message.join.member), message.join.group_id, message.join.view_id,
                             settings_from_wire(message.join.settings))
    if kind == "topic_request":
        request = message.topic_request
        wish: m.Wish
        if request.WhichOneof("wish") == "declare":
            wish = spec_from_wire(request.declare)
        elif request.WhichOneof("wish") == "deletion":
            deletion = request.deletion
            wish = m.Deletion(deletion.topic, (deletion.born_view_id, deletion.born_revision), deletion.renews,
                              deletion.undeclared)
        else:
            wish = m.Role(request.role.topic, request.role.member or request.role.sender, request.role.sender)
        return m.TopicRequest(request.request_id, request.view_id, wish)
    if kind == "rejection":
        return m.Rejection(message.rejection.request_id, message.rejection.kind, message.rejection.text)
    if kind == "admission":
        return m.Admission(view_from_wire(message.admission.view), message.admission.ballot,
                           message.admission.base_view_id, message.admission.joiners)
    if kind == "prepared":
        return m.Prepared(message.prepared.view_id, message.prepared.ballot)
    if kind == "lacking":
        return m.Lacking(message.lacking.view_id, message.lacking.ballot,
                         tuple((one.node_id, one.why[:WHY_MAX]) for one in message.lacking.lacks[:NODES_MAX]))
    if kind == "left_out":
        return m.LeftOut(message.left_out.view_id, message.left_out.ballot, message.left_out.why)
    if kind == "installed":
        return m.Installed(message.installed.group_id, message.installed.view_id, message.installed.ballot)
    return None
