"""Listeners: what programs want to be called for. Who calls them, on which thread and when: `dds.waiting.dispatcher`.

Rules: a status goes to the first listener that handles it: the entity's own, its publisher's or subscriber's, its
participant's (DDS 1.4, 2.2.4.3.2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dds.status import (
    DDSStatus,
    DeadlineMissedStatus,
    IncompatibleQosStatus,
    InconsistentTopicStatus,
    LivelinessChangedStatus,
    LivelinessLostStatus,
    NodeStatus,
    PublicationMatchedStatus,
    SampleLostStatus,
    SampleRejectedStatus,
    SubscriptionMatchedStatus,
)

# Callback, bit in status masks, and the method that reads the status ("" = the callback gets none).
CALLBACKS = {
    "on_inconsistent_topic": (DDSStatus.InconsistentTopic, "get_inconsistent_topic_status"),
    "on_data_available": (DDSStatus.DataAvailable, ""),
    "on_liveliness_lost": (DDSStatus.LivelinessLost, "get_liveliness_lost_status"),
    "on_liveliness_changed": (DDSStatus.LivelinessChanged, "get_liveliness_changed_status"),
    "on_offered_deadline_missed": (DDSStatus.OfferedDeadlineMissed, "get_offered_deadline_missed_status"),
    "on_offered_incompatible_qos": (DDSStatus.OfferedIncompatibleQos, "get_offered_incompatible_qos_status"),
    "on_data_on_readers": (DDSStatus.DataOnReaders, ""),
    "on_sample_lost": (DDSStatus.SampleLost, "get_sample_lost_status"),
    "on_sample_rejected": (DDSStatus.SampleRejected, "get_sample_rejected_status"),
    "on_requested_deadline_missed": (DDSStatus.RequestedDeadlineMissed, "get_requested_deadline_missed_status"),
    "on_requested_incompatible_qos": (DDSStatus.RequestedIncompatibleQos, "get_requested_incompatible_qos_status"),
    "on_publication_matched": (DDSStatus.PublicationMatched, "get_publication_matched_status"),
    "on_subscription_matched": (DDSStatus.SubscriptionMatched, "get_subscription_matched_status"),
    "on_node_changed": (DDSStatus.NodeChanged, "get_node_status"),  # beyond DDS
}


class Listener:
    """Derive from it and override callbacks, or give them by name: Listener(on_data_available=...).

    Raises TypeError for a name that is no callback.
    """

    def __init__(self, **callbacks: Callable[..., object] | None) -> None:
        for name, callback in callbacks.items():
            self._set(name, callback)

    def _set(self, name: str, callback: Callable[..., object] | None) -> None:
        if name not in CALLBACKS:
            raise TypeError(f"{name!r} is no callback of a Listener; there are {', '.join(CALLBACKS)}")
        if callback is None:
            self.__dict__.pop(name, None)
        elif callable(callback):
            self.__dict__[name] = callback
        else:
            raise TypeError(f"{name} must be callable, not {callback!r}")

    def handles(self, name: str) -> bool:
        """True if the callback `name` was given or overridden."""
        return name in self.__dict__ or getattr(type(self), name) is not getattr(Listener, name)

    def _handled(self) -> dict[str, Callable[..., object]]:
        return {name: getattr(self, name) for name in CALLBACKS if self.handles(name)}

    def reset(self) -> None:
        """Forget the callbacks that were given; overridden ones stay."""
        for name in CALLBACKS:
            self.__dict__.pop(name, None)

    def copy(self) -> Listener:
        """A listener with the same callbacks."""
        return Listener(**self._handled())

    def copy_to(self, listener: Listener) -> None:
        """Give all callbacks of this one to `listener`."""
        for name, callback in self._handled().items():
            listener._set(name, callback)

    def merge(self, listener: Listener) -> None:
        """Take over all callbacks of `listener`."""
        listener.copy_to(self)

    # The callbacks: what is overridden is called. Entities are Any, so that a program may say which ones it listens to:
    # on_data_available(self, reader: DataReader[Fix]).
    def on_inconsistent_topic(self, topic: Any, status: InconsistentTopicStatus) -> None: ...
    def on_data_available(self, reader: Any) -> None: ...
    def on_liveliness_lost(self, writer: Any, status: LivelinessLostStatus) -> None: ...
    def on_liveliness_changed(self, reader: Any, status: LivelinessChangedStatus) -> None: ...
    def on_offered_deadline_missed(self, writer: Any, status: DeadlineMissedStatus) -> None: ...
    def on_offered_incompatible_qos(self, writer: Any, status: IncompatibleQosStatus) -> None: ...
    def on_data_on_readers(self, subscriber: Any) -> None: ...
    def on_sample_lost(self, reader: Any, status: SampleLostStatus) -> None: ...
    def on_sample_rejected(self, reader: Any, status: SampleRejectedStatus) -> None: ...
    def on_requested_deadline_missed(self, reader: Any, status: DeadlineMissedStatus) -> None: ...
    def on_requested_incompatible_qos(self, reader: Any, status: IncompatibleQosStatus) -> None: ...
    def on_publication_matched(self, writer: Any, status: PublicationMatchedStatus) -> None: ...
    def on_subscription_matched(self, reader: Any, status: SubscriptionMatchedStatus) -> None: ...
    def on_node_changed(self, participant: Any, status: NodeStatus) -> None: ...

    def set_on_inconsistent_topic(self, callback: Callable[[Any, InconsistentTopicStatus], object] | None) -> None:
        self._set("on_inconsistent_topic", callback)

    def set_on_data_available(self, callback: Callable[[Any], object] | None) -> None:
        self._set("on_data_available", callback)

    def set_on_liveliness_lost(self, callback: Callable[[Any, LivelinessLostStatus], object] | None) -> None:
        self._set("on_liveliness_lost", callback)

    def set_on_liveliness_changed(self, callback: Callable[[Any, LivelinessChangedStatus], object] | None) -> None:
        self._set("on_liveliness_changed", callback)

    def set_on_offered_deadline_missed(self, callback: Callable[[Any, DeadlineMissedStatus], object] | None) -> None:
        self._set("on_offered_deadline_missed", callback)

    def set_on_offered_incompatible_qos(self, callback: Callable[[Any, IncompatibleQosStatus], object] | None) -> None:
        self._set("on_offered_incompatible_qos", callback)

    def set_on_data_on_readers(self, callback: Callable[[Any], object] | None) -> None:
        self._set("on_data_on_readers", callback)

    def set_on_sample_lost(self, callback: Callable[[Any, SampleLostStatus], object] | None) -> None:
        self._set("on_sample_lost", callback)

    def set_on_sample_rejected(self, callback: Callable[[Any, SampleRejectedStatus], object] | None) -> None:
        self._set("on_sample_rejected", callback)

    def set_on_requested_deadline_missed(self, callback: Callable[[Any, DeadlineMissedStatus], object] | None) -> None:
        self._set("on_requested_deadline_missed", callback)

    def set_on_requested_incompatible_qos(
            self, callback: Callable[[Any, IncompatibleQosStatus], object] | None) -> None:
        self._set("on_requested_incompatible_qos", callback)

    def set_on_publication_matched(self, callback: Callable[[Any, PublicationMatchedStatus], object] | None) -> None:
        self._set("on_publication_matched", callback)

    def set_on_subscription_matched(self, callback: Callable[[Any, SubscriptionMatchedStatus], object] | None) -> None:
        self._set("on_subscription_matched", callback)

    def set_on_node_changed(self, callback: Callable[[Any, NodeStatus], object] | None) -> None:
        self._set("on_node_changed", callback)


__all__ = ["Listener"]
