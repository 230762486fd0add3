"""Entity: what participants, topics, publishers, subscribers, readers, writers and conditions have in common.

Rules: an entity keeps its parents alive, never its children. It is closed by close(), by leaving a `with` block, when
its parent is closed, when it is forgotten, or at the end of the program, whichever comes first; a closed one raises
DDSException with DDS_RETCODE_ALREADY_DELETED. One that is not enabled has its place in the tree, its Qos and its
listener, and nothing else: no node and no peer has heard of it; what would need that raises DDS_RETCODE_NOT_ENABLED
(DDS 1.4, 2.2.2.1.1.7). Handles (`_ref`) are positive and never used twice.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from dds.exceptions import DDSException, closed, forked, not_enabled, translate
from dds.listener import CALLBACKS, Listener
from dds.matching.announcing import encode_qos, handle_of
from dds.matching.matching import Runtime
from dds.policy import policies
from dds.qos import LimitedScopeQos, Policy, Qos
from dds.status import DDSStatus, NodeStatus, check_mask
from dds.waiting import reaper
from spindle.errors import SpindleError
from spindle.locks import free_after_fork

if TYPE_CHECKING:
    import uuid

    from typing_extensions import Self

    from dds.waiting.wake import Waker
    from spindle.client import Session

_registry: weakref.WeakValueDictionary[int, Entity] = weakref.WeakValueDictionary()
_refs = itertools.count(1)
_ties = free_after_fork(threading.RLock())  # of who is in whom, and watches whom; a finalizer may close a wait set


class Entity:
    """Base of all entities. Entity(handle) is a second name for the entity with that handle, if it still exists."""

    _open = False
    _enabled = True
    _given = True  # what it is in was made by the program
    _is_grouped = False  # it goes by the Qos of what it is in, too
    _changing: threading.RLock
    _has_factory = False  # whether it is enabled at once is said by what it is made in
    _pid = 0  # of the process that made it
    _closer: Callable[[], None] | None = None  # gives back what the entity holds; doesn't know the entity
    _ref = 0
    _parent: Entity | None = None
    _listener: Listener | None = None
    _status_condition: StatusCondition | None = None
    _qos: Qos = Qos()
    _kind = "Entity"  # of Qos, as the table of policies has it
    _limited_qos: type[LimitedScopeQos] = LimitedScopeQos
    _revision = 0  # how often what is announced of it has changed
    _runtime: Runtime

    def __init__(self, ref: int, listener: Listener | None = None) -> None:
        self._ref = ref
        self._listener = listener

    def _enter(self, parent: Entity | None, qos: Qos, listener: Listener | None) -> None:
        """Make this a real entity below `parent`. Raises DDSException if that is closed, or inherited by fork()."""
        if parent is not None:
            parent._check_exists()
            if parent._is_inherited:
                raise forked(parent)
            self._enabled = not self._has_factory or (parent._enabled and policies.autoenables(parent._qos))
        self._ref = next(_refs)
        self._parent = parent
        self._qos = qos
        # Who changes a Qos has this: readers and writers go by that of their group, too, and share it.
        self._changing = parent._changing if parent is not None and self._is_grouped else threading.RLock()
        self._listener = None if listener is None else listener.copy()
        self._children_refs: list[weakref.ref[Entity]] = []
        self._changed = 0
        self._status_mask = DDSStatus.All
        self._watchers: tuple[weakref.ref[Waker], ...] = ()
        self._open = True
        self._pid = os.getpid()
        reaper.start()
        _registry[self._ref] = self
        if parent is not None:
            self._runtime = parent._runtime
            with _ties:
                living = (one for one in parent._children_refs if one() is not None)
                parent._children_refs = [*living, weakref.ref(self)]

    # --- beginning

    def enable(self) -> None:
        """Begin, if it was made disabled, and let what was made in it begin too, unless its own EntityFactory says no.
        DDS 1.4, 2.2.2.1.1.7. Nothing happens if it is enabled.

        Raises DDSException (PRECONDITION_NOT_MET) while what it was made in, or its topic, is disabled; and what making
        an enabled one raises. Then it stays disabled. What was made in it is tried all the same, and the first error
        is raised.
        """
        me = self._real()
        if me._enabled:
            return
        me._check_factory()
        with me._runtime.enabling:
            if me._enabled:
                return
            try:
                me._start()
            except BaseException:
                me._enabled = False
                me._give_back()
                raise
            me._enabled = True
        if not me._open:  # closed meanwhile by another thread, which didn't know what there would be to give back
            me._give_back()
            raise closed(repr(me))
        me._wake_watchers()
        failed: DDSException | None = None
        for child in me._living_children() if policies.autoenables(me._qos) else ():
            try:
                child.enable()
            except DDSException as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def is_enabled(self) -> bool:
        """False if it was made disabled, and waits for enable()."""
        return self._real()._enabled

    def _check_factory(self) -> None:
        if self._parent is not None and not self._given:
            self._parent.enable()
        if self._parent is not None and not self._parent._enabled:
            raise DDSException(DDSException.DDS_RETCODE_PRECONDITION_NOT_MET,
                               f"{self!r} is in {self._parent!r}, which is disabled: enable that first")

    def _start(self) -> None:
        """For subclasses: begin, as the Qos and what was said at its making have it."""

    # --- ending

    def _give_back(self) -> None:
        """What it holds, once. Not in a forked child: it is the parent's, and so are the threads that may have held its
        locks in that moment."""
        closer = self.__dict__.pop("_closer", None)
        if closer is not None and not self._is_inherited:
            closer()

    _is_inherited = property(lambda self: os.getpid() != self._pid, doc="It was made before fork(); this is the child.")

    def _abandon(self) -> None:
        """It could not be made."""
        self._open = False
        self._give_back()

    def close(self) -> None:
        """Close the entity and everything below it. Idempotent; callable from its own callbacks. DDSTimeout if its node
        doesn't answer: it is closed all the same. So it is if a signal's handler raises meanwhile, unless it raised
        before anything was closed."""
        if self._open:
            reaper.unbroken(self._end)

    def _end(self) -> None:
        if self._open:
            self._open = False
            failure: Exception | None = None
            for one in (*(child.close for child in self._living_children()), self._give_back):
                try:
                    one()
                except (DDSException, SpindleError, TimeoutError) as error:  # the others are closed, too
                    failure = failure or error
            self._wake_watchers()
            if failure is not None:
                raise translate(failure, f"closing {self!r}") from failure

    def __del__(self) -> None:
        # What is forgotten has no living children: they would keep it alive.
        if self._open:
            self._open = False
            if self._closer is not None and not self._is_inherited:
                reaper.put(self._closer)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"{self!r} can't be copied or pickled: there is one of it, and a copy that is forgotten would "
                        "close it; another process makes one of its own")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- relations

    def _check_exists(self) -> None:
        if not self._open:
            raise closed(repr(self))

    def _check_open(self) -> None:
        """Raise DDSException unless it is there and enabled."""
        if not self._open:
            raise closed(repr(self))
        if not self._enabled:
            raise not_enabled(repr(self))

    def _real(self) -> Entity:
        """The entity itself; for a second name made from a handle, the one it names."""
        if type(self) is Entity:
            found = _registry.get(self._ref)
            if found is None or not found._open:
                raise DDSException(DDSException.DDS_RETCODE_BAD_PARAMETER, f"there is no entity {self._ref}")
            return found
        self._check_exists()
        return self

    def _living_children(self) -> list[Entity]:
        found = (one() for one in getattr(self, "_children_refs", ()))
        return [one for one in found if one is not None and one._open]

    def get_parent(self) -> Entity | None:
        """The entity it was made in; None for a participant."""
        return self._real()._parent

    def get_participant(self) -> Participant:
        """The participant it belongs to, or itself."""
        entity = self._real()
        while entity._parent is not None:
            entity = entity._parent
        assert isinstance(entity, Participant)
        return entity

    def get_children(self) -> list[Entity]:
        """The living entities that were made in this one, oldest first."""
        return self._real()._living_children()

    def get_domain_id(self) -> int:
        return self._real()._runtime.session.domain_id

    # Subclasses that have one of the following three override its method.

    def get_publisher(self) -> Entity:
        raise self._no("publisher")

    def get_subscriber(self) -> Entity:
        raise self._no("subscriber")

    def get_datareader(self) -> Entity:
        raise self._no("reader")

    def _no(self, what: str) -> DDSException:
        return DDSException(DDSException.DDS_RETCODE_ILLEGAL_OPERATION, f"{self!r} has no {what}")

    def get_instance_handle(self) -> int:
        """A number for this entity, unique in its domain."""
        return self._real()._instance_handle()

    def _instance_handle(self) -> int:
        return handle_of(self._guid())

    def _guid(self) -> bytes:
        """16 bytes, unique in the group: the participant's own 12, and the entity's handle. After a reattachment the
        participant has 12 others: for the group it is a new participant."""
        return self._runtime.known_guid_of(self._ref)

    def get_guid(self) -> uuid.UUID:
        """Unique name of this entity in the group."""
        import uuid

        return uuid.UUID(bytes=self._real()._guid())

    @classmethod
    def get_entity(cls, entity_id: int) -> Entity | None:
        """The entity with this handle, or None."""
        return _registry.get(entity_id)

    # --- qos

    def get_qos(self) -> Qos:
        """The policies it goes by, with what was inherited and what is default."""
        return self._real()._qos

    def set_qos(self, qos: Qos) -> None:
        """Change policies: those that DDS 1.4, 2.2.3 calls changeable (the table in docs/qos.md), and all while the
        entity is disabled. Peers hear of it, and match anew. What `qos` doesn't say stays as it is.

        Raises DDSException (IMMUTABLE_POLICY) for others, and as creating the entity does; nothing is changed then.
        """
        me = self._real()
        with me._changing:
            following = policies.changed(type(me)._kind, me._qos, qos, me._limited_qos, me._enabled)
            if following != me._qos:
                me._change_qos(following, qos)

    def _change_qos(self, following: Qos, said: Qos) -> None:
        """For subclasses: go by `following` from now on, in which what a program has `said` is new."""
        self._qos = following

    def _apply_qos(self, following: Qos) -> None:
        """For readers and writers: go by what the group that they are in has now."""

    def _topic_changed(self, topic: Entity) -> None:
        """For readers and writers: what is announced of a topic has changed, perhaps theirs."""

    # --- listeners

    def get_listener(self) -> Listener:
        """A listener with the callbacks of this entity; what is changed in it concerns nobody until it is set."""
        listener = self._real()._listener
        return Listener() if listener is None else listener.copy()

    def set_listener(self, listener: Listener | None) -> None:
        """Take over the callbacks of `listener`, as they are now; those that it doesn't have stay as they were. None =
        no callbacks any more. TypeError for what is no Listener."""
        me = self._real()
        given = check_listener(listener)
        merged = None if given is None else me.get_listener()
        if merged is not None and given is not None:
            given.copy_to(merged)
        me._listener = merged
        me._runtime.listeners_changed()

    def _listener_for(self, name: str) -> Listener | None:
        """The listener that handles callback `name`: the entity's own, or the nearest above it."""
        entity: Entity | None = self
        while entity is not None:
            if entity._listener is not None and entity._listener.handles(name):
                return entity._listener
            entity = entity._parent
        return None

    # --- statuses

    def _note(self, name: str) -> None:
        """The status of callback `name` has changed: remember, wake who waits, tell who listens."""
        self._changed |= CALLBACKS[name][0]
        self._wake_watchers()
        if self._listener_for(name) is not None:
            self._runtime.dispatcher.post(self, name)

    def _wake_watchers(self) -> None:
        for one in self._watchers:
            waker = one()
            if waker is not None:
                waker.ring()

    def _watch_by(self, waker: Waker) -> None:
        with _ties:
            self._watchers = (*(one for one in self._watchers if one() is not None), weakref.ref(waker))

    def _unwatch_by(self, waker: Waker) -> None:
        with _ties:
            left = [one for one in self._watchers if one() is not None]
            mine = next((one for one in left if one() is waker), None)
            self._watchers = tuple(one for one in left if one is not mine)  # it may watch by a StatusCondition, too

    def _update_status(self) -> None:
        """For subclasses: bring the changed bits up to date."""

    def read_status(self, mask: int | None = None) -> int:
        """Bits of DDSStatus that have changed, of those in `mask` (None = in the status mask)."""
        me = self._real()
        if me._enabled:
            me._update_status()
        return me._changed & (me._status_mask if mask is None else mask)

    def take_status(self, mask: int | None = None) -> int:
        """As read_status(), and the bits returned count as seen."""
        me = self._real()
        found = me.read_status(mask)
        me._changed &= ~found
        me._status_taken(found)
        return found

    def _status_taken(self, bits: int) -> None:
        """For subclasses: these bits of what the last _update_status() found count as seen."""

    def get_status_changes(self) -> int:
        """All bits of DDSStatus that have changed since they were last looked at."""
        return self.read_status(DDSStatus.All)

    def get_status_mask(self) -> int:
        return self._real()._status_mask

    def set_status_mask(self, mask: int) -> None:
        """The bits that read_status() and wait sets look at. Raises TypeError, and DDSException (BAD_PARAMETER) if the
        entity has none of them."""
        me = self._real()
        me._status_mask = check_mask(me._kind, mask)

    def get_statuscondition(self) -> StatusCondition:
        """Its StatusCondition, for wait sets."""
        return StatusCondition(self)

    status_condition = property(get_statuscondition)

    def _triggers(self) -> bool:
        """True if a wait set that this entity is attached to should wake up."""
        return self.read_status() != 0

    # --- sets that belong together: of publishers and their writers, subscribers and their readers

    def begin_coherent(self) -> None:
        raise self._no("coherent sets")

    def end_coherent(self) -> None:
        raise self._no("coherent sets")

    def __repr__(self) -> str:
        state = " closed" if not self._open else "" if self._enabled else " disabled"
        return f"<{type(self).__module__}.{type(self).__name__} {self._ref}{self._about()}{state}>"

    def _about(self) -> str:
        """For repr(): what topic it has to do with, if any."""
        return ""

    parent = property(get_parent)
    participant = property(get_participant)
    children = property(get_children)
    instance_handle = property(get_instance_handle)
    guid = property(get_guid)
    qos = property(get_qos, set_qos)
    listener = property(get_listener, set_listener)
    status_mask = property(get_status_mask, set_status_mask)

    # Through the method, so that subclasses need only override that.
    @property
    def domain_id(self) -> int:
        return self.get_domain_id()

    @property
    def publisher(self) -> Entity:
        return self.get_publisher()

    @property
    def subscriber(self) -> Entity:
        return self.get_subscriber()

    @property
    def datareader(self) -> Entity:
        return self.get_datareader()


class Endpoint(Entity):
    """What readers and writers share: they belong to a topic, and to a group (a subscriber or publisher).

    _own    what the program has said of its Qos
    _given  the group was made by the program, not by the endpoint for itself
    """

    _is_grouped = True
    _group_kind: str
    _own: Qos
    _given: bool
    _topic: Any
    _codec: Any

    def _announcement(self, qos: Qos) -> bytes:
        """What everybody is told of an endpoint that goes by this."""
        group = self._parent._qos if self._parent is not None else Qos()
        return encode_qos(policies.announced(qos, self._topic._own_qos, group), self._codec.type_name,
                          self._revision, self._topic._channel, self._codec)

    def _change_qos(self, following: Qos, said: Qos) -> None:
        if self._given:
            policies.check_group(self._group_kind, said, self._parent._qos if self._parent else Qos(), self._qos)
        self._own = self._own + said
        self._apply_qos(following)

    def _topic_changed(self, topic: Entity) -> None:
        if topic is self._topic:
            with self._changing:
                self._apply_qos(self._qos)


class StatusCondition(Entity):
    """Triggered while one of the enabled statuses of an entity has changed. DDS 1.4, 2.2.2.1.9.

    Each entity has one, `entity.status_condition`; StatusCondition(entity) is the same one. To wait for the statuses of
    the entity's own mask, the entity itself may be attached to a WaitSet.

    enabled_statuses  bits of DDSStatus; all, if the program doesn't say which
    """

    enabled_statuses: int

    def __new__(cls, entity: Entity) -> StatusCondition:
        if not isinstance(entity, Entity) or isinstance(entity, StatusCondition):
            raise TypeError(f"a StatusCondition is that of an entity with statuses, not of {entity!r}")
        real = entity._real()
        found = real._status_condition
        if found is None:
            found = real._status_condition = super().__new__(cls)
            found.enabled_statuses = DDSStatus.All
            found._of = weakref.ref(real)
            found._ref = real._ref
        return found

    def __init__(self, entity: Entity) -> None:
        pass  # what it is, it is already

    _of: weakref.ref[Entity]

    @property
    def _open(self) -> bool:  # type: ignore[override]
        entity = self._of()
        return entity is not None and entity._open

    def _real(self) -> Entity:
        self._check_open()
        return self

    def get_entity(self) -> Entity:  # type: ignore[override]
        """The entity whose statuses these are."""
        self._check_open()
        entity = self._of()
        assert entity is not None
        return entity

    def get_enabled_statuses(self) -> int:
        return self.enabled_statuses

    def set_enabled_statuses(self, mask: int) -> None:
        """Bits of DDSStatus. Raises TypeError, and DDSException (BAD_PARAMETER) if the entity has none of them."""
        entity = self.get_entity()
        self.enabled_statuses = check_mask(entity._kind, mask)
        entity._wake_watchers()

    def get_trigger_value(self) -> bool:
        """True while one of the enabled statuses has changed."""
        return self.get_entity().read_status(self.enabled_statuses) != 0

    trigger_value = property(get_trigger_value)
    triggered = property(get_trigger_value)

    # For wait sets.

    def _triggers(self) -> bool:
        return self._open and self.get_trigger_value()

    def _watch_by(self, waker: Waker) -> None:
        self.get_entity()._watch_by(waker)

    def _unwatch_by(self, waker: Waker) -> None:
        entity = self._of()
        if entity is not None:
            entity._unwatch_by(waker)

    def close(self) -> None:
        """It ends with its entity."""

    def __del__(self) -> None:
        pass


class Participant(Entity):
    """The root of a tree of entities, as all of them know it: `dds.domain.DomainParticipant` is the one there is."""

    @property
    def session(self) -> Session:
        """The session with the node (spindle.client.Session): topics, view, counters and status of the group."""
        self._check_open()
        return self._runtime.session

    def get_node_status(self) -> NodeStatus:
        """The participant's node, and how often that went away or was replaced."""
        self._check_open()
        self._changed &= ~DDSStatus.NodeChanged
        return self._runtime.attachment.status.read()

    def find_topic(self, name: str, data_type: Any = bytes, *, keys: Sequence[str] = ()) -> Entity | None:
        """A Topic for the topic `name` if the group has it, else None; one in an order group if anybody has it open.
        Its type must be `data_type` with `keys`."""
        raise NotImplementedError


E = TypeVar("E", bound=Entity)


def enabled(entity: E) -> E:
    """`entity`, enabled if the Qos of what it was made in did not do so: for what libraries make in the participant of
    a program."""
    entity.enable()
    return entity


def check_listener(listener: Any) -> Listener | None:
    if listener is not None and not isinstance(listener, Listener):
        raise TypeError(f"listener must be a Listener, not {listener!r}")
    return listener


def entity_name(qos: Qos) -> str:
    policy = qos[Policy.EntityName]
    return "" if policy is None else str(policy.name)
