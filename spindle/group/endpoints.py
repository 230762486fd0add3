"""Endpoints: what the group knows about each announced reader and writer, and of the topics and participants that
applications announce beside them.

Why a module of its own: a node spreads them, an application asks for them, and neither should import the other for it.

Rules: `endpoint` is opaque to nodes (the DDS layer keeps its Qos there) and small; a guid names one endpoint for ever.
The first OWNER_BYTES of a guid are those of its participant: what agrees in them belongs together.
"""

from __future__ import annotations

import dataclasses

from spindle.errors import ConfigError

GUID_BYTES_MAX = 16
OWNER_BYTES = 12
ENDPOINT_BYTES_MAX = 4096
RELAY_SHIFT = 15  # the identity of a relayed writer without its writer id

PORT = 0  # a reader or a writer
TOPIC = 1  # a topic, as one program has it
PARTICIPANT = 2  # a program, or a part of one, that has such things
KINDS = (PORT, TOPIC, PARTICIPANT)
HALTED = "halted"  # in what a node says of a topic of its own accord: why its journal writes nothing


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """One reader or writer of an application somewhere in the group, or what else its `kind` says.

    guid      1 to 16 bytes, unique in the group
    node_id   of the node that its application is attached to
    topic     empty for participants
    endpoint  up to 4096 bytes, opaque
    app_name  of its application, for people; pid as seen by its node (0 = not visible)
    writer_id number of a writer on its node, as in the info of its messages; given by the node (0 for readers)
    relay     of a writer on a host without a node: with `writer_id`, which one it is, at whatever node; as in the info
              of its messages. 0 for all others
    Raises ConfigError if guid or endpoint have another size, or the kind isn't known.
    """

    guid: bytes
    node_id: int
    is_writer: bool
    topic: str
    endpoint: bytes = b""
    app_name: str = ""
    pid: int = 0
    writer_id: int = 0
    relay: int = 0
    kind: int = PORT

    def __post_init__(self) -> None:
        if not 1 <= len(self.guid) <= GUID_BYTES_MAX:
            raise ConfigError(f"a guid has 1 to {GUID_BYTES_MAX} bytes, this one {len(self.guid)}")
        if self.kind not in KINDS or (self.kind == PARTICIPANT) != (not self.topic):
            raise ConfigError(f"kind {self.kind} of topic {self.topic!r}: there is nothing of that kind in a group")
        if len(self.endpoint) > ENDPOINT_BYTES_MAX:
            what = f"topic {self.topic!r}" if self.topic else f"participant of {self.app_name!r}"
            raise ConfigError(f"the endpoint description of {what} has {len(self.endpoint)} bytes, "
                              f"limit {ENDPOINT_BYTES_MAX}")

    @property
    def owner(self) -> bytes:
        """What it has in common with all that belongs to the same participant."""
        return self.guid[:OWNER_BYTES]


__all__ = ["ENDPOINT_BYTES_MAX", "GUID_BYTES_MAX", "HALTED", "OWNER_BYTES", "PARTICIPANT", "PORT", "RELAY_SHIFT",
           "TOPIC", "Endpoint"]
