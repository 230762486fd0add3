"""What histories and restarts need of a topic on this node: `spindle.topics.local_topic.LocalTopic` is that topic.

Why a protocol: a topic holds what fills it (`spindle.restart.catching_up`), and that works on the topic. So it says
here what it uses of the topic, and knows nothing of readers and writers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spindle.group.topics import TopicSpec
    from spindle.group.types import KeptTypes
    from spindle.journal import Journal
    from spindle.restart.chain import Life, Order, Summary
    from spindle.restart.history import Message
    from spindle.restart.tables import TableState
    from spindle_core.delivery import DeliveryLog
    from spindle_core.engine import Engine


class Incomplete(Protocol):
    """A topic's way to being whole, as far as other nodes' words concern it."""

    def heard(self, node_id: int, view_id: int, summary: Summary) -> None:
        """A node has said what is in its journal."""

    def recorded(self, node_id: int, view_id: int) -> None:
        """A node has written down who goes on."""

    async def summary(self) -> Summary:
        """What this node has on disk, while it isn't whole."""


class TopicHere(Protocol):
    """One topic on this node."""

    engine: Engine
    node_id: int
    spec: TopicSpec
    topic_id: int
    log: DeliveryLog | None
    lives: tuple[Life, ...]  # of a logged topic: also groups that it was restored from
    first_order: Order  # of this membership's log
    types: KeptTypes  # of what is kept here

    @property
    def catching_up(self) -> Incomplete | None:
        """While the topic isn't whole here."""

    @property
    def whole(self) -> bool:
        """True if this node is a member and has all that came before it was one."""

    @property
    def busy(self) -> bool:
        """True while something must be delivered before live messages."""

    @property
    def history_waiting(self) -> int:
        """Bytes of the history that are not in the log yet."""

    @property
    def retained_bytes(self) -> tuple[int, int, int, int]:
        """What of a history is worth having in the log: bytes, and those that each message takes beside its payload;
        the largest message that counts with its payload, and bytes of the payloads of larger ones."""

    @property
    def fills_table(self) -> bool:
        """True if a history of it is what others keep of each key: it goes into the table, and not into the log."""

    def note_history(self, messages: list[Message]) -> None:
        """Messages that come before all that will be in the log, in their order, for the table of keys."""

    def take_table(self, table: TableState) -> None:
        """The history is another member's table, of which this is known beside the messages. It may be added to until
        the history is whole."""

    def take_types(self, types: Iterable[bytes]) -> None:
        """Types of a history, before its messages. Raises ConfigError for what can be none."""

    def append_history(self, messages: list[Message]) -> None:
        """Messages that come before all that is delivered here, in their order."""

    def forget_history(self) -> None:
        """Nobody is left who has the rest of it."""

    def filled(self, until_view: int) -> None:
        """The history is whole, up to the messages of view `until_view`."""

    def start_journal(self, group: str, held: Order) -> None:
        """Opens the journal, which holds everything up to `held`."""

    async def end_journal(self) -> None:
        """Closes the journal, when it has written what is in the log, and drops the log: both begin anew."""

    async def journal(self) -> Journal:
        """The journal, when it runs. Raises JournalError if it can't."""

    async def journal_is_durable(self) -> None:
        """Returns when all that is in the log by now, or on its way there as history, is on disk."""

    async def retired(self) -> None:
        """Waits until what an earlier membership had is closed."""
