"""What a writer counts: the statuses of a DataWriter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dds.entity import Endpoint
from dds.status import (
    DDSStatus,
    DeadlineMissedStatus,
    IncompatibleQosStatus,
    LivelinessLostStatus,
    PublicationMatchedStatus,
    UnacknowledgedStatus,
    while_disabled,
)
from dds.topic import Topic
from dds.waiting import reaper

if TYPE_CHECKING:
    from dds.matching.announcing import Remote
    from dds.matching.matching import Matches
    from dds.messages.announced import AnnouncedType
    from dds.writers.link import WriterLink


class WriterStatuses(Endpoint):
    """The base of `dds.writers.writer.WriterCore`."""

    _group_kind = "Publisher"

    _link: WriterLink
    _matches: Matches
    _missed: DeadlineMissedStatus
    _topic: Topic[Any]

    def _about(self) -> str:
        return f" of topic {self._topic.name!r}"

    def _update_status(self) -> None:
        reaper.flush()  # a reader that was just forgotten doesn't match any more

    @while_disabled(PublicationMatchedStatus)
    def get_publication_matched_status(self) -> PublicationMatchedStatus:
        """Readers that match, and how that changed since the last call."""
        self._check_open()
        self._changed &= ~DDSStatus.PublicationMatched
        return self._matches.status.read()

    @while_disabled(IncompatibleQosStatus)
    def get_offered_incompatible_qos_status(self) -> IncompatibleQosStatus:
        """Readers that ask for more than this writer offers."""
        self._check_open()
        self._changed &= ~DDSStatus.OfferedIncompatibleQos
        return self._matches.incompatible_status.read()  # type: ignore[return-value]

    @while_disabled(LivelinessLostStatus)
    def get_liveliness_lost_status(self) -> LivelinessLostStatus:
        """How often the writer gave no sign of life in time, or its node went away."""
        self._check_open()
        self._changed &= ~DDSStatus.LivelinessLost
        return self._matches.liveliness_lost_status.read()  # type: ignore[return-value]

    @while_disabled(UnacknowledgedStatus)
    def get_unacknowledged_status(self) -> UnacknowledgedStatus:
        """How many samples their nodes had not acknowledged when they went away."""
        self._check_open()
        return self._link.status.read()  # type: ignore[return-value]

    @while_disabled(DeadlineMissedStatus)
    def get_offered_deadline_missed_status(self) -> DeadlineMissedStatus:
        """How often the time of the Deadline passed without a sample of an instance that this writer has written."""
        self._check_open()
        self._changed &= ~DDSStatus.OfferedDeadlineMissed
        return self._missed.read()  # type: ignore[return-value]

    def _meets(self, type_: AnnouncedType) -> str:
        return ""

    def _differs(self, remote: Remote, difference: str) -> None:
        self._topic._differs(remote, difference)

    def _misses(self, missed: list[tuple[int, int]]) -> None:
        """The vigil calls it: instances, and how many periods each."""
        for instance, periods in missed:
            self._missed.count(periods)
            self._missed.last_instance_handle = instance
        self._note("on_offered_deadline_missed")

    def _loses_liveliness(self) -> None:
        """The vigil calls it."""
        self._matches.liveliness_lost_status.count()
        self._note("on_liveliness_lost")


__all__ = ["WriterStatuses"]
