"""From everything that is wished for to the one next view, and what has to be refused on the way.

Why one function for it: the present leader plans alone, and the members only check what they get; all rules about ids,
ranks, limits and first declarers are in this file.

Rules: wishes say what should be, not what should change, so a wish that is told twice does no harm. A wish that the
view fulfils already asks for nothing. Refusals go to the node that wished, and never stop the rest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from spindle.errors import SpindleError, TopicInUse, TopicLimit, TopicUnknown, error_to_wire
from spindle.group.layout import check_memory
from spindle.group.levels import Level
from spindle.group.settings import UNSAID, Settings
from spindle.group.topics import TOPICS_MAX, TopicSpec
from spindle.group.view import NODES_MAX, Member, Renewal, Topic, View, different
from spindle.membership.messages import Deletion, Rejection, Role, TopicRequest, Wish

TOPICS_BYTES_MAX = 100 << 10  # of the topics in a view's description: it must fit the core's proposal area
ROLES_MAX = 10_000  # members of all topics together: they must fit the same, and their counts the core's trim area


@dataclasses.dataclass
class Wishes:
    """What is pending at one node: joiners by node id, topic wishes by node, kind and topic in order of arrival."""

    joins: dict[int, Member] = dataclasses.field(default_factory=dict)
    topics: dict[tuple[int, str, str], TopicRequest] = dataclasses.field(default_factory=dict)
    settings: Settings = UNSAID  # the newest that somebody brought along

    def add(self, node_id: int, request: TopicRequest) -> None:
        """The newest wish of a node about a topic replaces its earlier one of the same kind."""
        renews = isinstance(request.wish, Deletion) and request.wish.renews
        key = (node_id, "Renewal" if renews else type(request.wish).__name__, request.topic)
        old = self.topics.get(key)
        if old is None or old.request_id <= request.request_id:
            self.topics.pop(key, None)
            self.topics[key] = request

    @property
    def asking_for_roles(self) -> set[int]:
        """Node ids."""
        return {node_id for (node_id, _, _), one in self.topics.items() if isinstance(one.wish, Role)}

    def propose(self, settings: Settings) -> None:
        """Keeps the newest settings; of two with the same version the first."""
        if settings.version > self.settings.version:
            self.settings = settings

    def drop(self, member: Member) -> None:
        """Forgets everything that this life of a node wished: it is gone."""
        join = self.joins.get(member.node_id)
        if join is not None and join.incarnation == member.incarnation:
            del self.joins[member.node_id]
        self.topics = {key: one for key, one in self.topics.items() if key[0] != member.node_id}

    def drop_fulfilled(self, view: View) -> None:
        """Forgets what `view` fulfils, and topic wishes of nodes that aren't members. A join stays while an earlier
        life of its node id is still in the view."""
        nodes = set(view.node_ids)
        lives = {member.life for member in view.members}
        self.joins = {
            node_id: member for node_id, member in self.joins.items() if member.life not in lives}
        self.topics = {
            key: one for key, one in self.topics.items() if key[0] in nodes and not fulfilled(view, key[0], one.wish)
        }


def fulfilled(view: View, node_id: int, wish: Wish) -> bool:
    """True if nothing has to change for this wish."""
    if isinstance(wish, Deletion):
        topic = view.topic(wish.topic)
        if wish.undeclared:
            return topic is not None
        return topic is None or topic.born != wish.born
    if isinstance(wish, Role):
        return view.has_role(node_id, wish.topic, wish.member, wish.sender)
    return view.declares(wish.name)


@dataclasses.dataclass
class _Draft:
    spec: TopicSpec
    topic_id: int
    members: set[int]
    senders: set[int]
    born: tuple[int, int]
    renewal: Renewal = Renewal.NONE


def _draft_of(topic: Topic) -> _Draft:
    return _Draft(topic.spec, topic.topic_id, set(topic.members), set(topic.senders), topic.born, topic.renewal)


class _Drafts:
    """The topics as they are to be in the next view. Topics that nobody wishes to change are not touched."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._drafts: dict[str, _Draft | None] = {}  # None: is to be no more

    def get(self, name: str) -> _Draft | None:
        """The draft of a topic, for changing; None if there is no such topic."""
        if name not in self._drafts:
            topic = self._view.topic(name)
            if topic is None:
                return None
            self._drafts[name] = _draft_of(topic)
        return self._drafts[name]

    def put(self, name: str, draft: _Draft | None) -> None:
        self._drafts[name] = draft

    def topics(self) -> list[Topic | _Draft]:
        """Those of the view in their places, then the new ones."""
        drafts = self._drafts
        kept = [drafts.get(topic.spec.name, topic) for topic in self._view.topics]
        new = [draft for name, draft in drafts.items() if self._view.topic(name) is None]
        return [one for one in [*kept, *new] if one is not None]

    def finished(self, nodes: list[int]) -> Iterator[Topic]:
        """The topics of the next view, which has these nodes."""
        before = {topic.topic_id: topic for topic in self._view.topics}
        stay = set(self._view.node_ids) <= set(nodes)
        for one in self.topics():
            if isinstance(one, Topic):
                if stay and not one.fresh:
                    yield one
                    continue
                one = _draft_of(one)
            yield _finish(one, nodes, before.get(one.topic_id))


@dataclasses.dataclass
class Plan:
    """The next view, None if nothing changes, and the refusals as (node id, refusal)."""

    view: View | None
    rejections: list[tuple[int, Rejection]]


def plan_next(view: View, wishes: Wishes, leaving: frozenset[int]) -> Plan:
    """One next view out of all `wishes` and the nodes that are leaving or suspected; a revision of `view` if that is
    enough. Joiners beyond NODES_MAX wait, and so do those whose node id is in `view` still."""
    settings = max(view.settings, wishes.settings, key=lambda one: one.version)  # the group's where both are equal
    if settings is view.settings and not (wishes.joins or wishes.topics or leaving):
        return Plan(None, [])
    stay = tuple(member for member in view.members if member.node_id not in leaving)
    taken = set(view.node_ids)
    joiners = [member for node_id, member in sorted(wishes.joins.items()) if node_id not in taken]
    members = stay + tuple(joiners[: NODES_MAX - len(stay)])
    nodes = [member.node_id for member in members]
    drafts = _Drafts(view)
    rejections: list[tuple[int, Rejection]] = []
    # Declarations first: a role needs its topic, whichever arrived first. Deletions last: a role keeps its topic alive.
    for (node_id, _, _), request in sorted(wishes.topics.items(), key=lambda item: _ORDER[type(item[1].wish)]):
        try:
            if isinstance(request.wish, TopicSpec):
                _declare(drafts, request.wish, view.state)
            elif isinstance(request.wish, Deletion):
                _delete(drafts, request.wish, view.state)
            elif node_id in nodes:
                _take_role(drafts, node_id, request.wish)
        except SpindleError as error:
            rejections.append((node_id, Rejection(request.request_id, *error_to_wire(error))))
    topics = tuple(drafts.finished(nodes))
    if members == view.members and settings is view.settings and (
            _subgroups(different(topics, view.topics)) == _subgroups(different(view.topics, topics))):
        # Nothing in shared memory has to move.
        before = {topic.topic_id: topic for topic in view.topics}
        topics = tuple(old if (old := before.get(topic.topic_id)) is not None and old.born == topic.born else topic
                       for topic in topics)
        if topics == view.topics:
            return Plan(None, rejections)
        return Plan(dataclasses.replace(view, topics=topics, revision=view.revision + 1), rejections)
    # Journals of a joiner may know of later views of an earlier life of the group: view ids never fall behind them.
    view_id = max([view.view_id + 1, *(member.view_floor for member in members if member not in stay)])
    return Plan(View(view.group_id, view_id, members, topics, settings), rejections)


def following(view: View) -> View:
    """The next view with the same members and topics."""
    topics = tuple(dataclasses.replace(topic, fresh=()) if topic.fresh else topic for topic in view.topics)
    return dataclasses.replace(view, view_id=view.view_id + 1, revision=0, topics=topics)


_ORDER = {TopicSpec: 0, Role: 1, Deletion: 2}


def _declare(drafts: _Drafts, wanted: TopicSpec, state: tuple[int, int]) -> None:
    known = drafts.get(wanted.name)
    if known is None:
        _add(drafts, wanted.with_window(), state)
    elif known.renewal is Renewal.AWAITED:
        drafts.put(wanted.name, None)
        _add(drafts, wanted.with_window(), state, Renewal.DECLARED)
    else:
        known.spec.check_same(wanted)


def _add(drafts: _Drafts, spec: TopicSpec, state: tuple[int, int], renewal: Renewal = Renewal.NONE) -> None:
    used = {draft.topic_id for draft in drafts.topics()}  # with those that are about to be deleted
    topic_id = max(used, default=0) + 1
    if topic_id > TOPICS_MAX:  # only when numbers above all used ones have run out, gaps below are filled
        free = set(range(1, TOPICS_MAX + 1)) - used
        if not free:
            raise TopicLimit(f"topic {spec.name!r} cannot be declared: the group has {TOPICS_MAX} topics, which is the "
                             "limit; delete some that nobody uses (`spindle topics --delete`, names or patterns), or "
                             "use another domain")
        topic_id = min(free)
    described = sum(_described_bytes(draft.spec) for draft in drafts.topics()) + _described_bytes(spec)
    if described > TOPICS_BYTES_MAX:
        raise TopicLimit(f"topic {spec.name!r} cannot be declared: the descriptions of all topics would take "
                         f"{described} bytes, limit {TOPICS_BYTES_MAX}; use shorter names")
    check_memory(tuple(Topic(draft.spec, draft.topic_id) for draft in drafts.topics()), spec)
    drafts.put(spec.name, _Draft(spec, topic_id, set(), set(), state, renewal))


def _delete(drafts: _Drafts, wish: Deletion, state: tuple[int, int]) -> None:
    draft = drafts.get(wish.topic)
    if draft is None and wish.undeclared:
        _add(drafts, TopicSpec(wish.topic, level=Level.LOGGED).with_window(), state, Renewal.AWAITED)
        return
    if draft is None or wish.undeclared or draft.born != wish.born:
        return
    from shlex import quote

    what = "declared anew" if wish.renews else "deleted"
    if draft.spec.level is not Level.LOGGED and wish.renews:
        raise TopicInUse(f"topic {wish.topic!r} is not logged: it can be declared anew as soon as no program has a "
                         "reader or writer of it any more, without any preparation")
    if draft.spec.level is Level.LOGGED and not wish.renews and draft.renewal is not Renewal.AWAITED:
        raise TopicInUse(f"topic {wish.topic!r} cannot be deleted: it is logged, and its journals outlive the group. "
                         f"`spindle topics {quote(wish.topic)} --redefine` puts them aside and lets the next program "
                         "that declares it say what it is")
    if draft.members:
        who = "node {} has" if len(draft.members) == 1 else "nodes {} have"
        raise TopicInUse(f"topic {wish.topic!r} cannot be {what}: "
                         f"{who.format(' '.join(map(str, sorted(draft.members))))} readers or writers of it; close "
                         "them first")
    drafts.put(wish.topic, dataclasses.replace(draft, born=state, renewal=Renewal.AWAITED) if wish.renews else None)


def _described_bytes(spec: TopicSpec) -> int:
    return len(spec.name.encode()) + len(spec.type_name.encode()) + len(spec.type_hash) + 64


def _take_role(drafts: _Drafts, node_id: int, role: Role) -> None:
    draft = drafts.get(role.topic)
    if draft is None or draft.renewal is Renewal.AWAITED:
        if role.member:
            raise TopicUnknown(f"topic {role.topic!r} is not declared; declare it before opening readers or writers")
        return
    if role.member and node_id not in draft.members and sum(len(one.members) for one in drafts.topics()) >= ROLES_MAX:
        raise TopicLimit(f"node {node_id} cannot join topic {role.topic!r}: the topics of the group together have "
                         f"{ROLES_MAX} members, which is the limit: close topics that are not needed at some nodes")
    (draft.members.add if role.member else draft.members.discard)(node_id)
    (draft.senders.add if role.sender else draft.senders.discard)(node_id)


def _subgroups(topics: Iterable[Topic]) -> set[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    return {(topic.topic_id, topic.members, topic.senders) for topic in topics if topic.members}


def _finish(draft: _Draft, nodes: list[int], before: Topic | None) -> Topic:
    if before is not None and not before.fresh and draft.members == set(before.members) <= set(nodes) and (
            draft.senders == set(before.senders)) and draft.born == before.born:
        return before
    members = tuple(node_id for node_id in nodes if node_id in draft.members)
    senders = tuple(node_id for node_id in members if node_id in draft.senders)
    fresh = tuple(node_id for node_id in members if before is None or node_id not in before.members)
    return Topic(draft.spec, draft.topic_id, members, senders, fresh, draft.born, draft.renewal)
