"""Types of samples, known to every member of a topic before the first sample of each is written.

Why before: samples and what nodes say to each other travel on different ways, and a writer's node may die between the
two. What a member has in its log, it must be able to tell the next one how to read.

How: a node says to all others which types its applications write (`TypeHeld`), once for each topic. A writer is opened
when all members of the topic in the installed view have answered that they keep the type; so they do before its first
message. A member that comes later gets the types with the history, from a guide that is a member of the view before, or
has them in the same way.

Rules:
- An answer says in which view it was given. It counts once the asking node is in that view, too: else it might not know
  yet of a member that had the history before the type.
- When the last writer of a type has gone, and all that was written to the topic at this node is delivered, the node
  says that (`TypeOver`). A node that is out of the view writes nothing any more. From then on a member keeps the type
  as long as its log has messages that it had by then, if there is room (`spindle.group.types`); topics that keep the
  last messages of each key may have one of any age, so they keep all types that have room.
- A node of a version that keeps no types is not waited for.
- Nothing is said of topics that keep no history.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from spindle.errors import ConfigError, GroupSilent, SpindleError, TopicLimit, WireError
from spindle.group.topics import NAME_BYTES_MAX, TOPICS_MAX
from spindle.group.types import KeptTypes, key_of
from spindle.proto import node_pb2 as pb
from spindle.waiting import within

if TYPE_CHECKING:
    from spindle.group.view import View
    from spindle.topics.local_topic import LocalTopic

KINDS = ("type_held", "type_known", "type_over")
DELIVERED_POLL_S = 0.005  # first pause between two looks whether all that was written is delivered; doubles up to
DELIVERED_POLL_MAX_S = 0.1

Life = tuple[int, int]  # node id and incarnation


class _Held:
    """A type that applications of this node write to one topic.

    known    lives of nodes that keep it -> the view in which they said so
    problem  why one of them can't; empty if all can
    settled  every member keeps it
    """

    def __init__(self, said: bytes, number: int) -> None:
        self.said, self.number = said, number
        self.writers = 0
        self.known: dict[Life, int] = {}
        self.problem = ""
        self.settled = False


class Types:
    """Those of one node. send(node id, message) queues a message; connected() are the nodes it may go to, keeps(node
    id) says whether one of them keeps types; local(name) and view() look up."""

    def __init__(self, node_id: int, send: Callable[[int, pb.PeerMessage], bool],
                 connected: Callable[[], dict[int, int]], keeps: Callable[[int], bool],
                 local: Callable[[str], LocalTopic | None], view: Callable[[], View | None], timeout_s: float) -> None:
        self._me, self._send, self._connected, self._keeps = node_id, send, connected, keeps
        self._local, self._view, self._timeout_s = local, view, timeout_s
        self._own: dict[tuple[str, bytes], _Held] = {}
        self._others: dict[Life, dict[str, KeptTypes]] = {}  # by topic
        self._numbers = itertools.count(1)
        self._moved = asyncio.Event()  # set, and another one put in its place, when something has come
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped: SpindleError | None = None

    # --- what this node's applications write

    async def hold(self, local: LocalTopic, said: bytes) -> bytes:
        """A writer is about to write samples of this type; returns its key when every member keeps it. Raises
        TopicLimit if a member can't, GroupSilent if one doesn't answer, ConfigError."""
        name, key = local.spec.name, key_of(said)
        held = self._own.get((name, key))
        if held is None:
            local.keep_type(said)
            held = self._own[name, key] = _Held(said, next(self._numbers))
            for node_id in self._connected():
                self._tell(node_id, name, held)
        held.writers += 1
        try:
            await within(self._timeout_s, self._until_settled(name, held))
        except asyncio.TimeoutError:
            self.release(local, key)
            raise GroupSilent(f"topic {name!r}: not every member has said within {self._timeout_s:g} s that it keeps "
                              "the type of this writer. A member hangs: see `spindle status`, stop it or let it go on, "
                              "then try again") from None
        except BaseException:
            self.release(local, key)
            raise
        return key

    async def _until_settled(self, name: str, held: _Held) -> None:
        while not self._is_settled(name, held):
            if self._stopped is not None:
                raise self._stopped
            if held.problem:
                raise TopicLimit(held.problem)
            await self._moved.wait()
        held.settled = True

    def _is_settled(self, name: str, held: _Held) -> bool:
        """True if all members keep it, in a view that this node has installed."""
        view = self._view()
        topic = view.topic(name) if view is not None else None
        if held.settled:
            return True
        if view is None or topic is None or max(held.known.values(), default=0) > view.view_id:
            return False
        lives = [one.life for one in view.members if one.node_id in topic.members and one.node_id != self._me]
        return all(life in held.known or not self._keeps(life[0]) for life in lives)

    def release(self, local: LocalTopic, key: bytes) -> None:
        """One of its writers has gone, and all that it had written is delivered."""
        name = local.spec.name
        held = self._own[name, key]
        held.writers -= 1
        if not held.writers:
            del self._own[name, key]
            self._spawn(self._over(local, key))

    async def _over(self, local: LocalTopic, key: bytes) -> None:
        """Says so, once nothing of it is on its way by another writer that spoke for the one that has gone."""
        name = local.spec.name
        ports = [(port, port.inbox.committed) for port in local.writers]
        pause = DELIVERED_POLL_S
        while any(port in local.writers and port.inbox.acknowledged < committed for port, committed in ports):
            await asyncio.sleep(pause)
            pause = min(2 * pause, DELIVERED_POLL_MAX_S)
        if (name, key) in self._own:
            return  # somebody writes it again
        for node_id in self._connected():
            self._send(node_id, pb.PeerMessage(type_over=pb.TypeOver(topic=name, key=key)))
        self._look_at(name)

    def introduce(self, node_id: int) -> None:
        """Tells a newly connected node everything of ours."""
        for (name, _), held in self._own.items():
            self._tell(node_id, name, held)

    def _tell(self, node_id: int, name: str, held: _Held) -> None:
        self._send(node_id, pb.PeerMessage(type_held=pb.TypeHeld(topic=name, type=held.said, number=held.number)))

    # --- what other nodes say

    def take(self, life: Life, message: pb.PeerMessage) -> None:
        """A message of one of KINDS from a node. Raises WireError if it makes no sense."""
        kind = message.WhichOneof("body")
        if kind == "type_held":
            self._heard(life, message.type_held)
        elif kind == "type_known":
            said = message.type_known
            held = self._own.get((said.topic, said.key))
            if held is not None and held.number == said.number:
                if said.problem:
                    held.problem = said.problem
                else:
                    held.known[life] = said.view_id
                self._wake()
        else:
            self._drop(life, message.type_over.topic, message.type_over.key)
            self._look_at(message.type_over.topic)

    def _heard(self, life: Life, message: pb.TypeHeld) -> None:
        name, topics = message.topic, self._others.setdefault(life, {})
        if len(name.encode()) > NAME_BYTES_MAX or (name not in topics and len(topics) >= TOPICS_MAX):
            raise WireError(f"node {life[0]} writes types to more than {TOPICS_MAX} topics, or to one with a name of "
                            f"more than {NAME_BYTES_MAX} bytes")
        answer = pb.TypeKnown(topic=name, key=key_of(message.type), number=message.number)
        try:
            theirs = topics.setdefault(name, KeptTypes(name))
            theirs.keep(message.type, set(theirs.said))  # all of them are written
            local = self._local(name)
            if local is not None and local.member and local.spec.level.keeps_history:
                local.keep_type(message.type)
        except ConfigError as error:
            raise WireError(f"node {life[0]}: {error}") from None
        except TopicLimit as error:
            self._drop(life, name, answer.key)
            answer.problem = f"node {self._me}: {error}"
        view = self._view()
        answer.view_id = 0 if view is None else view.view_id
        self._send(life[0], pb.PeerMessage(type_known=answer))

    def _drop(self, life: Life, name: str, key: bytes) -> None:
        """That node doesn't write it any more, or can't."""
        topics = self._others.get(life, {})
        if name in topics:
            topics[name].drop(key)
            if not topics[name].said:  # else a node that writes ever new topics would come to the limit
                del topics[name]

    def gone(self) -> None:
        """The connection to a node has ended."""
        if (view := self._view()) is not None:
            self.view_changed(view)

    def view_changed(self, view: View) -> None:
        """A view is installed: what nodes wrote that are in none any more is all delivered."""
        lives = {one.life for one in view.members} | set(self._connected().items())
        over = [topics for life, topics in self._others.items() if life not in lives]
        self._others = {life: topics for life, topics in self._others.items() if life in lives}
        for name in {name for topics in over for name in topics}:
            self._look_at(name)
        self._wake()

    # --- what is kept here

    def entered(self, local: LocalTopic) -> None:
        """The node has become a member: it keeps what others write already."""
        name = local.spec.name
        for topics in self._others.values():
            if name in topics:
                local.take_types(topics[name].said.values())

    def kept(self, local: LocalTopic) -> tuple[bytes, ...]:
        """Those of what a topic keeps here, and of what may be written to it."""
        local.look_at_types()
        return tuple(local.types.said.values())

    def written(self, name: str) -> set[bytes]:
        """Keys of the types that somebody may write to a topic."""
        own = {key for topic, key in self._own if topic == name}
        return own.union(*(topics[name].said for topics in self._others.values() if name in topics))

    def _look_at(self, name: str) -> None:
        local = self._local(name)
        if local is not None and local.member:
            local.look_at_types()

    # --- the end

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._stopped is not None:
            work.close()
            return
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self, error: SpindleError) -> None:
        """Nothing is said any more; who waits gets `error`."""
        self._stopped = error
        for task in self._tasks:
            task.cancel()
        self._wake()


__all__ = ["KINDS", "Types"]
