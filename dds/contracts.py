"""What the modules below the entities need of them: listener thread, matching, links to nodes, event loop waits.

Why: entities hold objects of these modules, which tell the entities what happens. The methods that they call are listed
here, so that `dds.entity`, `dds.readers.reader` and `dds.pub` import these modules and not the other way round.

Rules: these modules hold an entity weakly, or only while they use it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from dds.listener import Listener
    from dds.messages.announced import AnnouncedType
    from dds.qos import Qos
    from dds.waiting.wake import Deadline, Hub, Waker
    from spindle.client import Session
    from spindle.group.position import Position


class AnEntity(Protocol):
    """See `dds.entity.Entity`."""

    _open: bool
    _ref: int
    _listener: Listener | None
    @property
    def _parent(self) -> AnEntity | None: ...

    def _listener_for(self, name: str) -> Listener | None:
        """The listener that handles callback `name`: the entity's own, or the nearest above it."""

    def _note(self, name: str) -> None:
        """The status of callback `name` has changed: remember, wake who waits, tell who listens."""

    def _wake_watchers(self) -> None:
        """Wait sets look at it again."""


class AnEndpoint(AnEntity, Protocol):
    """A reader or writer."""

    def _meets(self, type_: AnnouncedType) -> str:
        """An end with this type can be understood: be ready for it. Why not, after all; "" if it is."""

    def _differs(self, remote: Any, difference: str) -> None:
        """`remote`, of the topic, has a type that doesn't go with this one's."""

    _qos: Qos

    def _apply_qos(self, following: Qos) -> None:
        """Go by `following` from now on, and announce it."""


class ABell(Protocol):
    """What rings once for each time that somebody has asked for it."""

    def fileno(self) -> int:
        """Readable after a ring."""


class ASource(Protocol):
    """See `dds.readers.source.LogSource`: where a reader's messages come from, and how to wait for them."""

    @property
    def session(self) -> Session: ...
    @property
    def starts_at(self) -> tuple[int, int]: ...
    @property
    def stands_at(self) -> tuple[int, int]: ...
    @property
    def is_over(self) -> bool: ...
    @property
    def bell(self) -> ABell | None: ...
    def arm(self) -> int: ...
    def wait(self, waker: Waker, left_s: float | None, known: int) -> None: ...
    def clear(self, waker: Waker | None) -> None: ...


class AReader(AnEndpoint, Protocol):
    """See `dds.readers.reader.ReaderCore`."""

    _hub: Hub  # who waits for its data
    _consumed: int  # samples that were given out for the first time
    _intake: Any
    _lock: threading.RLock

    @property
    def _source(self) -> ASource:
        """Where its messages come from."""

    def _check_open(self) -> None:
        """DDSException if it is closed."""

    def _block(self, handle: int) -> None:
        """Samples of this writer are not for it."""

    def _unblock(self, handle: int) -> None:
        """Another writer, with the number of an earlier one, is for it."""

    def _forget_lapse(self, handle: int) -> None:
        """This writer has gone, whether it was alive or not."""

    def _learn_kept(self, types: Iterable[bytes]) -> None:
        """Its node keeps samples of these types."""

    def _switched(self, continued: bool) -> None:
        """Another node goes on serving it."""

    def _hears_of_ends(self, ends: Iterable[Position], view_id: int = 0) -> None:
        """Where the orders of earlier groups end."""

    def _is_through(self) -> bool:
        """The next node's log may come."""

    def _turned(self, view_id: int) -> None:
        """It has come."""

    def _unread(self) -> int:
        """Samples that were not given out yet, as far as is known without taking them."""

    def _look_at_statuses(self) -> None:
        """Brings up to date what is counted of samples that came, or did not."""

    def _ready(self, condition: object) -> bool:
        """True if there is a sample that fits."""

    def _known(self, condition: object) -> int:
        """-1 if there is a sample that fits; else how many messages had come when it looked, and the next one rings."""

    def _head(self) -> tuple[int, int, int]:
        """Which of its logs grows, how many samples have come in it, and how many that it had held back have come.
        Raises ValueError if it is closed."""


class ACondition(Protocol):
    """Which samples: `dds.conditions.ReadCondition` or QueryCondition, of the reader that is asked."""

    @property
    def reader(self) -> Any: ...
    @property
    def mask(self) -> int: ...
    @property
    def content(self) -> Any:
        """dds.filters.content.Content, or None."""
    @property
    def order(self) -> Callable[[Any], Any] | None: ...


class AVigil(Protocol):
    """See `dds.writers.vigil.Vigil`."""

    _link: Any

    def written(self, instance: int) -> None:
        """Its writer has written a sample of this instance."""

    def lives(self, now_ns: int) -> None:
        """The lease of its writer begins anew."""

    def assert_liveliness(self) -> None:
        """The program says that its writers live."""


class AWriter(AnEndpoint, Protocol):
    """See `dds.pub.DataWriter`."""

    def _rebind(self) -> None:
        """Its link has another inbox."""

    def _check_doubts(self) -> None:
        """Raises DDSUnacknowledged if there is something in doubt that nobody has heard of."""

    def _wait_for_acks(self, deadline: Deadline, persisted: bool, takes_doubts: bool = True) -> bool:
        """See DataWriter.wait_for_acks(). takes_doubts=False: who writes next hears of what is in doubt."""

    def _misses(self, missed: list[tuple[int, int]]) -> None:
        """It has not written these instances in time, for so many periods."""

    def _loses_liveliness(self) -> None:
        """Its lease has run out."""
