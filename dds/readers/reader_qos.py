"""What a reader's Qos and its topic's filter make of the reader, and how its Qos changes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from dds.filters.content import Both, ByFunction, Content
from dds.matching.announcing import Remote, decode_type
from dds.matching.consistency import class_of_type, inconsistency
from dds.messages.announced import AnnouncedType
from dds.nodes.local_writers import LocalWriters
from dds.policy import policies
from dds.qos import Qos
from dds.readers.statuses import EVERYTHING, ReaderStatuses
from dds.topic import Topic
from spindle.errors import SpindleError


class ReaderByQos(ReaderStatuses):
    """The base of `dds.readers.reader.ReaderCore`."""

    _group_kind = "Subscriber"
    _topic: Topic[Any]
    _local: LocalWriters
    _depth: int

    def _block(self, handle: int) -> None:
        """Samples of this writer are not for us."""
        raise NotImplementedError

    def _choose_way(self) -> None:
        """Whether samples need to be looked at one by one."""
        raise NotImplementedError

    def _apply_qos(self, following: Qos) -> None:
        """Go by it, and say so. DDSException; then nothing has changed."""
        if not self._enabled:
            self._qos = following
            return
        self._revision += 1
        self._source.change(self._announcement(following))
        with self._lock:
            self._check_open()
            if self._intake.standing.differs(following):
                self._fill(EVERYTHING)  # what has come by now is judged by what was so far
                self._look_for_lost()
            self._qos = following
            self._intake.change(following)
            self._losses.depth = self._counted_depth(self._intake.chooses)
            self._choose_way()
        self._runtime.alarms.look(self)
        self._runtime.reconsider(self._matches, following)
        self._hub.woken()

    def _content(self, filtered: Content | None) -> Content | None:
        """Which samples this reader is about: what its ContentFilteredTopic says, and its Topic's own filter."""
        topic, function = self._topic, self._topic._filter
        if function is None:
            return filtered
        by_function = ByFunction(lambda sample: function(topic, sample))
        return by_function if filtered is None else Both(filtered, by_function)

    def _ignoring(self) -> Callable[[int], bool] | None:
        """What IgnoreLocal makes of the writer with a handle; None without it."""
        if not policies.ignores_local(self._qos, True, True):
            return None
        owners, me, qos = self._local.owners, self._runtime.number, self._qos

        def ignored(handle: int) -> bool:
            owner = owners.get(handle)
            return policies.ignores_local(qos, owner == me, owner is not None)

        return ignored

    def _counted_depth(self, chooses: bool) -> int:
        """What KeepLast replaces can be told by counting only where every sample counts."""
        return 0 if chooses or self._codec.key_of is not None else self._depth

    def _meets(self, type_: AnnouncedType) -> str:
        """A writer has this type, which this reader's is assignable from."""
        if type_.kind != "idl" or type_.identifier == self._matches.type.identifier:
            return ""
        try:
            return str(self._codec.learn(type_.identifier, class_of_type(type_)))
        except (TypeError, ValueError) as error:
            return f"the writer's type can't be used here: {error}"

    def _learn_kept(self, types: Iterable[bytes]) -> None:
        """What the topic keeps may be of writers that have gone. Of types that nobody announces, this is all there is
        to know."""
        mine = self._matches.type
        if mine.kind != "idl":
            return  # of others no sample says which it is of
        for said in types:
            type_ = decode_type(said, self._topic._channel)
            if type_ is None or type_.kind != "idl" or self._codec.knows(type_.identifier):
                continue
            difference = inconsistency(mine, type_, self._qos) or self._meets(type_)
            if difference:
                self._codec.learn(type_.identifier, None, difference)
                self._topic._keeps_other(type_, difference)

    def _seek_types(self) -> None:
        """A sample has come of a type that this reader has not heard of. Its node has, before the sample came."""
        session = self._source.newest.session
        if session.beside_node:  # else it may take long
            with contextlib.suppress(SpindleError, TimeoutError):
                self._learn_kept(session.types(self._matches.topic))

    def _differs(self, remote: Remote, difference: str) -> None:
        """Samples of this writer are not for us, whenever they come."""
        if remote.type.kind == "idl" and self._matches.type.kind == "idl":
            self._codec.learn(remote.type.identifier, None, difference)
        self._block(remote.handle)
        self._topic._differs(remote, difference)


__all__ = ["ReaderByQos"]
