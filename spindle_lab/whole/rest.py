"""What nodes must not have any more when all programs have closed what they had open and nothing is under way.

Each line names one thing that is left; the world waits for there to be none, and reports those that stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spindle.applications.attachment import Attachments
    from spindle.node.node import Node


def left_in(attachments: Attachments) -> Iterator[str]:
    """What one node still has."""
    node = attachments.node
    counts = {
        "applications": attachments.apps,
        "applications that are served": attachments._tasks,
        "guids of ports": attachments.announced,
        "announced endpoints": node.endpoints(),
        **_of_topics(node), **_of_connections(node),
    }
    for what, some in counts.items():
        if some:
            yield f"node {node.node_id} has {what}: {str(some)[:200]}"


def _of_topics(node: Node) -> dict[str, object]:
    table, view = node._changes.topics, node._view
    assert view is not None
    questions, machine = table.questions, node._changes.machine
    here = table.local.values()
    return {
        "topics with members": [one.spec.name for one in view.topics if one.members or one.senders],
        "topics that are open": [one.spec.name for one in here if one.writers or one.readers or one.member],
        "wishes for topics": [one.spec.name for one in here if one.writers_wanted or one.readers_wanted],
        "logs": [one.spec.name for one in here if one.log is not None],
        "journals that are being closed": [
            one.spec.name for one in here if one._retiring is not None and not one._retiring.done()],
        "writers that are being closed": table._closing,
        "openings that wait": table._waiters,
        "histories that it takes": questions._streams,
        "histories that it gives": questions.giving._given,
        "histories that it keeps": questions.giving._pinned,
        "wishes of its own": machine._own,
        "wishes of others": [machine._wishes.topics, machine._wishes.joins]
                            if machine._wishes.topics or machine._wishes.joins else [],
        "messages for a later view": machine._deferred,
    }


def _of_connections(node: Node) -> dict[str, object]:
    peers, following, reception = node._peers, node._changes.next, node._reception
    handover = node.relays._handover
    assert reception is not None
    conns = [one.conn for one in peers.connected.values()]
    return {
        "applications that it relays for": handover._relays,
        "claims": [handover._claims, handover._pending] if handover._claims or handover._pending else [],
        "connections that are being made": [*peers._opening, *following._connecting],
        "connections whose process hasn't ended": peers._parting,
        "connections that haven't said who they are": [*reception._greeting, *reception._places._own,
                                                       *reception._places._strangers],
        "peers that are no members": [] if node._view is None else [
            one for one in peers.connected if node._view.rank_of(one) is None],
        "bytes that wait for peers": sum(one._out_bytes for one in conns),
        "turns that are waited for": [turn for one in conns for turn in one._turns],
        "rows of a view to come": [following._view] if following._view is not None else following._offers,
    }
