"""What nodes must not have any more when all programs have closed what they had open and nothing is under way.

Each line names one thing that is left; the world waits for there to be none, and reports those that stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from spindle.membership.plan import fulfilled

if TYPE_CHECKING:
    from spindle.applications.attachment import Attachments
    from spindle.node.node import Node


def is_left(attachments: Attachments) -> bool:
    """One node still has something. The world asks after every step: what is found first ends the search."""
    return any(some for _, some in _counted(attachments))


def left_in(attachments: Attachments) -> Iterator[str]:
    """All that one node still has."""
    for what, some in _counted(attachments):
        if some:
            yield f"node {attachments.node.node_id} has {what}: {str(some)[:200]}"


def kept_in_vain(serving: Sequence[Attachments]) -> str:
    """A history that one node keeps for another that is whole already, with it or without it; empty if there is none.
    Such a history holds the log, and writers wait."""
    nodes = {one.node.node_id: one.node for one in serving}
    for node in nodes.values():
        for pin in node._changes.topics.questions.giving._pinned:
            local = nodes[pin.node_id]._changes.topics.local.get(pin.topic) if pin.node_id in nodes else None
            if local is not None and local.whole:
                return f"node {node.node_id} keeps a history of {pin.topic!r} for node {pin.node_id}, which is whole"
    return ""


def _counted(attachments: Attachments) -> Iterator[tuple[str, object]]:
    node = attachments.node
    own = int(attachments.embedded)  # the program that it is embedded in
    yield "applications", list(attachments.apps.values())[own:]
    yield "applications that are served", list(attachments._tasks)[own:]
    yield "guids of ports", attachments.announced
    yield "announced endpoints", node.endpoints(everything=True)
    yield from _of_topics(node)
    yield from _of_connections(node)
    yield from _of_links(node)


def _of_topics(node: Node) -> Iterator[tuple[str, object]]:
    table, view = node._changes.topics, node._view
    assert view is not None
    questions, machine = table.questions, node._changes.machine
    here = table.local.values()
    yield "topics with members", [one.spec.name for one in view.topics if one.members or one.senders]
    yield "topics that are open", [one.spec.name for one in here if one.writers or one.readers or one.member]
    yield "wishes for topics", [one.spec.name for one in here if one.writers_wanted or one.readers_wanted]
    yield "logs", [one.spec.name for one in here if one.log is not None]
    yield "journals that are being closed", [
        one.spec.name for one in here if one._retiring is not None and not one._retiring.done()]
    yield "writers that are being closed", table._closing
    yield "writers of its own", [*table.timekeeper._voices, *table.timekeeper._tasks]
    yield "openings that wait", table._waiters
    yield "histories that it takes", questions._streams
    yield "histories that it gives", questions.giving._given
    yield "histories that it keeps", questions.giving._pinned
    names = {one.spec.name for one in view.topics}
    yield "large samples", [hex(one) for one in node.large.store.ids()
                            if (held := node.large.store.find(one)) is not None and held.topic in names]
    yield "large samples on their way", [*table.larges._own, *table.larges.room._used, *table.larges._bringing]
    yield "memory of large samples for the next ones", node.large.spare.bytes_kept
    # A wish that the view fulfils is kept until the next view: an older one may still be on its way to the leader.
    yield "wishes of its own", [
        one for one in machine._own.values() if not fulfilled(view, machine.me.node_id, one)]
    yield "wishes of others", [one for one in (machine._wishes.topics, machine._wishes.joins) if one]
    yield "messages for a later view", machine._deferred


def _of_connections(node: Node) -> Iterator[tuple[str, object]]:
    peers, following, reception = node._peers, node._changes.next, node._reception
    handover = node.relays._handover
    assert reception is not None
    yield "applications that it relays for", handover._relays
    yield "claims", [one for one in (handover._claims, handover._pending) if one]
    yield "connections that are being made", [*peers._opening, *following._connecting]
    yield "connections whose process hasn't ended", peers._parting
    yield "connections that haven't said who they are", [*reception._greeting, *reception._places._own,
                                                         *reception._places._strangers]
    yield "peers that are no members", [] if node._view is None else [
        one for one in peers.connected if node._view.rank_of(one) is None]
    conns = [one.conn for one in peers.connected.values()]
    yield "bytes that wait for peers", sum(one._out_bytes for one in conns)
    yield "turns that are waited for", [turn for one in conns for turn in one._turns]
    yield "rows of a view to come", [following._view] if following._view is not None else following._offers


def _of_links(node: Node) -> Iterator[tuple[str, object]]:
    pooling, neighbours = node.links._pooling, node.links.neighbours
    if pooling is None:
        return
    yield "links", pooling.pool.open_links()
    yield "guards of links", pooling._guards
    yield "regions", list(pooling.exports._open)
    yield "regions that end", pooling.exports._ending
    yield "memory that is waited for", pooling._awaiting
    yield "ends of connections that nobody took", pooling._prepared
    yield "what settles", [one for one in (pooling._settling, neighbours.settling._answers) if one]
    yield "memory that it has asked for", [one.asked for one in neighbours._known.values() if one.asked]
