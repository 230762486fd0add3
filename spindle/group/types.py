"""What writers say of the types of their samples, and how much of that is kept for a topic.

Why it is kept: a sample in a history or a journal may outlive its writer and all programs that knew the writer's type.
Whoever reads it then needs the type, or it is bytes to him. To nodes a type is bytes, too: the DDS layer makes them and
reads them.

Rules: equal bytes are one type; its key says which. Limits hold for each topic, at each node. What is being written has
room before what is only kept.
"""

from __future__ import annotations

from hashlib import blake2b

from spindle.errors import ConfigError, TopicLimit

TYPE_BYTES_MAX = 16384  # of one type
TYPES_MAX = 128  # of one topic
TYPES_BYTES_MAX = 256 << 10  # all of them together
KEY_BYTES = 16


def key_of(said: bytes) -> bytes:
    """KEY_BYTES by which a type is known."""
    return blake2b(said, digest_size=KEY_BYTES).digest()


def check_type(topic: str, said: bytes) -> None:
    """ConfigError unless this can be what a writer says of its type."""
    if not 1 <= len(said) <= TYPE_BYTES_MAX:
        raise ConfigError(f"topic {topic!r}: a type is described by 1 to {TYPE_BYTES_MAX} bytes, not by {len(said)}")


class KeptTypes:
    """Those of one topic at one node.

    said  by key, in the order in which they came. Replaced, never changed: a journal's thread reads it
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._ends: dict[bytes, int] = {}  # of those that nobody writes: the index in the log that follows its samples
        self._bytes = 0
        self.said: dict[bytes, bytes] = {}

    def keep(self, said: bytes, written: set[bytes]) -> int:
        """Keeps a type. If there is no room, types that are not `written` any more go, the oldest first; returns how
        many. Raises TopicLimit if that isn't enough, ConfigError."""
        check_type(self._topic, said)
        key, gone = key_of(said), 0
        if key not in self.said:
            while not self._has_room(len(said)):
                oldest = next((one for one in self.said if one not in written), None)
                if oldest is None:
                    raise TopicLimit(
                        f"topic {self._topic!r} is written with {len(self.said)} types, which take {self._bytes} bytes;"
                        f" the limits are {TYPES_MAX} types and {TYPES_BYTES_MAX} bytes of a topic. Close writers, or "
                        "write to another topic")
                self._forget({oldest})
                gone += 1
            self.said = {**self.said, key: said}
            self._bytes += len(said)
        self._ends.pop(key, None)
        return gone

    def _has_room(self, size: int) -> bool:
        return len(self.said) < TYPES_MAX and self._bytes + size <= TYPES_BYTES_MAX

    def _forget(self, keys: set[bytes]) -> None:
        self.said = {key: said for key, said in self.said.items() if key not in keys}
        self._bytes = sum(map(len, self.said.values()))
        for key in keys:
            self._ends.pop(key, None)

    def look(self, written: set[bytes], delivered: int | None, oldest: int) -> None:
        """Forgets types whose samples are not kept any more.

        written    keys of those that somebody may write
        delivered  how many messages the log has had; None: not all that is delivered is in it yet
        oldest     index of the oldest that it still has
        """
        gone = set()
        for key in self.said:
            if key in written:
                self._ends.pop(key, None)
                continue
            if key not in self._ends and delivered is not None:
                self._ends[key] = delivered
            if self._ends.get(key, oldest + 1) <= oldest:
                gone.add(key)
        if gone:
            self._forget(gone)

    def drop(self, key: bytes) -> None:
        """Nobody needs it, whatever is kept. Idempotent."""
        if key in self.said:
            self._forget({key})


__all__ = ["KEY_BYTES", "TYPES_BYTES_MAX", "TYPES_MAX", "TYPE_BYTES_MAX", "KeptTypes", "check_type", "key_of"]
