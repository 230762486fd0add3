"""Publishers: they group writers, whose samples may belong together, or be held back for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from dds.entity import Entity, Participant, check_listener
from dds.exceptions import DDSException
from dds.listener import Listener
from dds.matching.matching import change_members
from dds.policy import policies
from dds.qos import PublisherQos, Qos
from dds.waiting.wake import Deadline
from dds.writers.carrier import Carrier, Coherence
from dds.writers.suspension import Suspension

if TYPE_CHECKING:
    from dds.contracts import AWriter


class Publisher(Entity):
    """Groups writers. Its listener hears what they don't handle, its Qos may order access."""

    _kind = "Publisher"
    _has_factory = True
    _limited_qos = PublisherQos

    def __init__(self, domain_participant: Participant, qos: Qos | None = None, listener: Listener | None = None
    ) -> None:
        if not isinstance(domain_participant, Participant):
            raise TypeError(f"a Publisher is made in a DomainParticipant, not in {domain_participant!r}")
        own = policies.check("Publisher", qos, PublisherQos)
        self._suspension = Suspension()
        self._coherence = Coherence(self._suspension)
        self._coherence.offered = policies.presentation(own)[1]
        self._closer = self._coherence.abandon
        self._carriers: dict[str, Carrier] = {}  # by order group
        self._enter(domain_participant, own, check_listener(listener))

    def get_publisher(self) -> Publisher:
        return self

    @property
    def publisher(self) -> Publisher:
        return self.get_publisher()

    # --- coherent sets

    def begin_coherent(self) -> None:
        """What the publisher's writers write from here on is one set, which readers get whole or not at all, until
        end_coherent(). Sets within a set are part of it. DDS 1.4, 2.2.2.4.1.10.

        It is sent when it ends. It spans the publisher's topics of one order group; of other topics, each writer's
        samples are a set. Raises DDSException (PRECONDITION_NOT_MET) unless the publisher's Qos offers coherent access,
        DDSUnacknowledged if a node went away with samples that it had not acknowledged.
        """
        self._check_open()
        if not self._coherence.offered:
            raise DDSException(
                DDSException.DDS_RETCODE_PRECONDITION_NOT_MET,
                f"{self!r} offers no coherent access: make it with Qos(Policy.PresentationAccessScope.Topic("
                "coherent_access=True, ordered_access=True)), or Group for topics of an order group")
        for one in self._writers():
            one._check_doubts()
        self._coherence.begin()

    def end_coherent(self) -> None:
        """The set ends, and is sent. DDS 1.4, 2.2.2.4.1.11.

        Raises as write(): then the set was not sent, and is none any more. DDSException (PRECONDITION_NOT_MET) if there
        is no set, or a write in it has failed.
        """
        self._check_open()
        self._coherence.end()

    def discard_coherent(self) -> None:
        """The set ends, and nothing of it is sent. DDSException (PRECONDITION_NOT_MET) if there is none."""
        self._check_open()
        self._coherence.discard()

    @contextlib.contextmanager
    def coherent(self) -> Iterator[None]:
        """begin_coherent(), and at the end of the block end_coherent(); if the block raises, nothing of it is sent."""
        self.begin_coherent()
        try:
            yield
        except BaseException as error:
            self._coherence.discard(error)
            raise
        self.end_coherent()

    # --- Qos

    def _start(self) -> None:
        self._coherence.offered = policies.presentation(self._qos)[1]

    def _change_qos(self, following: Qos, said: Qos) -> None:
        change_members(self, following)

    # --- holding back

    def suspend(self) -> None:
        """What the publisher's writers write from here on is held in this process until resume(). DDS 1.4, 2.2.2.4.1.8.

        Each writer can hold as many samples as may wait between it and its node (ResourceLimits.max_samples). What is
        held when it is closed is never sent. DDSException (PRECONDITION_NOT_MET) if it is suspended already.
        """
        self._check_open()
        self._suspension.begin()
        for one in self._writers():
            one._rebind()

    def resume(self) -> None:
        """Send what was held, of each writer in the order of writing. DDS 1.4, 2.2.2.4.1.9.

        Raises as write(): then the rest is still held, and resume() goes on with it. DDSException
        (PRECONDITION_NOT_MET) if it isn't suspended.
        """
        self._check_open()
        self._suspension.end()
        for one in self._writers():
            one._rebind()

    def _writers(self) -> list[AWriter]:
        return [cast("AWriter", one) for one in self._living_children() if one._enabled]

    def wait_for_acks(self, timeout: int) -> bool:
        """As DataWriter.wait_for_acks, for all its writers together."""
        self._check_open()
        deadline = Deadline(timeout)
        return all(one._wait_for_acks(deadline, False) for one in self._writers())


__all__ = ["Publisher"]
