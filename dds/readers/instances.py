"""The instances of a type with a key at one reader: their states, and who writes them. DDS 1.4, 2.2.2.5.1.3.

Rules: an instance is forgotten when it isn't alive, nothing of it is kept, and no writer is registered with it.
"""

from __future__ import annotations

import collections
from typing import Any

from dds.codecs.types import Codec
from dds.messages.operations import DISPOSES, UNREGISTERS, Peak, handle_of
from dds.messages.packets import Message
from dds.status import InstanceState
from spindle.client.samples import Keyed, KeyPlaces, KeyTable

NEVER = (1 << 63) - 1  # UTC ns


class Instance(Keyed):
    """An instance in one reader. Types without a key have one, with handle KEYLESS_HANDLE, which stays alive.

    It is settled (spindle_core.keyed) for writers that are registered with it while it is alive: their samples change
    nothing about it.

    new          none of its samples was returned since it came alive
    generation   how often it came alive again after it was disposed, and after it had no writers
    writers      how many are registered with it
    newest       latest source timestamp of what it was told, ns; see has_news()
    owner        (strength, publication handle) of the writer that is heard, see `dds.readers.standing`; None: any
    passed       source timestamp of the last sample that a TimeBasedFilter let pass, ns; None before the first
    passed_at    when it did, monotonic ns
    withheld     a later sample that came too soon, as long as it is the last
    ending       the kept entry that says that it has ended, if there is one
    """

    __slots__ = (
        "ending", "entries", "gone", "kept", "key", "newest", "owner", "passed", "passed_at", "state", "withheld",
        "writers")

    def __init__(self, key: Any, handle: int) -> None:
        super().__init__(handle, (0, 0))
        self.key = key
        self.state = InstanceState.Alive
        self.writers = 0
        self.newest = 0
        self.owner: tuple[int, int] | None = None
        self.passed: int | None = None
        self.passed_at = 0
        self.withheld: Entry | None = None
        self.kept = 0  # entries
        self.ending: Entry | None = None
        self.entries: collections.deque[Entry] | None = None  # samples, for KeepLast only
        self.gone = 0  # entries in there that were taken

    @property
    def is_over(self) -> bool:
        """It isn't alive and has no writers. Whether it was forgotten since depends on what the program has taken; no
        reader may differ by that, so whatever comes now finds it as one that was never heard of."""
        return not self.writers and self.state != InstanceState.Alive

    def begin_anew(self) -> None:
        """After it was over, and before it is disposed once more."""
        self.state = InstanceState.Alive
        self.newest = 0
        self.passed = None

    def would_be_news(self, source_ns: int) -> bool:
        """True unless something came before that was written later, as the sources say."""
        return source_ns >= self.newest or self.is_over

    def has_news(self, source_ns: int) -> bool:
        """The same, of something that comes now."""
        if not self.would_be_news(source_ns):
            return False
        self.newest = source_ns
        return True


class Entry:
    """A sample that is kept, or the end of an instance: its payload, what the core says of it, and its states.

    generation  of its instance when it came
    ends        it has no sample, and says that its instance isn't alive any more
    failure     why it can't be given to the program, None if nothing is known to be wrong with it
    expires     when it is given up, read or not, UTC ns
    step        place of its message among those of an order group, for readers that go through it together
    sort_key    (order, what that order sorts the sample by); made when it is first asked for
    sample      what the payload was decoded to, until somebody gets it; None if it has to be decoded
    """

    __slots__ = (
        "ends", "expires", "failure", "generation", "gone", "instance", "live", "payload", "read", "sample", "sort_key",
        "step")

    def __init__(self, payload: bytes, live: Message, instance: Instance, ends: bool = False,
                 sample: Any = None) -> None:
        self.payload = payload
        self.live = live
        self.instance = instance
        self.generation = instance.generation
        self.ends = ends
        self.read = False
        self.gone = False
        self.expires = NEVER
        self.step = 0
        self.failure: Exception | None = None
        self.sort_key: tuple[Any, Any] | None = None
        self.sample = sample


class Instances:
    """The instances that a reader knows.

    key_of  sample -> key
    table   finds those again whose keys stand at known places of a payload
    """

    def __init__(self, codec: Codec) -> None:
        assert codec.key_of is not None
        self.key_of = codec.key_of
        self.table = KeyTable(None if codec.key_places is None else KeyPlaces(*codec.key_places))
        self.by_handle: dict[int, Instance] = {}
        self._by_key: dict[Any, Instance] = {}
        self._peak = Peak()
        self._registered: dict[int, dict[Instance, None]] = {}  # publication handle -> instances, oldest first

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, key: Any) -> Instance | None:
        return self._by_key.get(key)

    def of(self, key: Any) -> Instance:
        """The instance with this key, a new one if need be."""
        found = self._by_key.get(key)
        if found is None:
            found = self._by_key[key] = Instance(key, handle_of(key))
            self.by_handle[found.handle] = found
            self._peak.has(len(self._by_key))
        return found

    def keep(self, instance: Instance) -> None:
        """Something of it is kept, whether or not it was forgotten."""
        self._by_key.setdefault(instance.key, instance)
        self.by_handle.setdefault(instance.handle, instance)

    def of_payload(self, payload: bytes, sample: Any) -> Instance:
        """The instance of a payload, which `sample` was decoded from."""
        found = self.of(self.key_of(sample))
        self.table.remember(payload, found)
        return found

    def of_writer(self, writer: int) -> list[Instance]:
        """Those that the writer with this publication handle is registered with, in the order of its first samples."""
        return list(self._registered.get(writer, ()))

    def writers(self) -> list[int]:
        """Publication handles of those that are registered with anything."""
        return list(self._registered)

    def writers_at(self, node_id: int) -> list[int]:
        """Publication handles of the writers of a node that are registered with anything."""
        return [writer for writer in self._registered if writer >> 16 == node_id]

    # --- what messages do

    def write(self, instance: Instance, writer: int) -> None:
        """A writer has written a sample of it."""
        self.register(instance, writer)
        if instance.state != InstanceState.Alive:
            disposed, without_writers = instance.generation
            was_disposed = instance.state == InstanceState.NotAliveDisposed
            instance.generation = disposed + was_disposed, without_writers + (not was_disposed)
            instance.state = InstanceState.Alive
            instance.new = True

    def register(self, instance: Instance, writer: int) -> None:
        """A writer has to do with it."""
        registered = self._registered.get(writer)
        if registered is None:
            registered = self._registered[writer] = {}
        if instance not in registered:
            registered[instance] = None
            instance.writers += 1

    def end(self, instance: Instance, writer: int, tag: int) -> bool:
        """A writer has disposed of it, or unregistered, or both; True if that changed its state."""
        before = instance.state
        instance.unsettle()
        if tag & DISPOSES:
            instance.state = InstanceState.NotAliveDisposed
        if tag & UNREGISTERS:
            registered = self._registered.get(writer)
            if registered is not None and instance in registered:
                del registered[instance]
                instance.writers -= 1
                if not registered:
                    del self._registered[writer]
            if not instance.writers and instance.state == InstanceState.Alive:
                instance.state = InstanceState.NotAliveNoWriters
        return instance.state != before

    def displace(self) -> Instance | None:
        """Forget the instance of which nothing is kept for longest, alive or not; None if there is none."""
        found = next((one for one in self.by_handle.values() if not one.kept and one.withheld is None), None)
        if found is None:
            return None
        for writer in [one for one, registered in self._registered.items() if found in registered]:
            self._registered[writer].pop(found)
            if not self._registered[writer]:
                del self._registered[writer]
        found.unsettle()
        self._forget(found)
        return found

    def forget_if_over(self, instance: Instance) -> bool:
        """Call it when nothing of the instance is kept any more, or it has lost a writer. True if it was forgotten."""
        over = not instance.kept and not instance.writers and instance.state != InstanceState.Alive
        if over and self._by_key.get(instance.key) is instance:
            self._forget(instance)
        return over

    def _forget(self, instance: Instance) -> None:
        del self._by_key[instance.key]
        self.by_handle.pop(instance.handle, None)
        self.table.forget(instance)
        if self._peak.has_left(len(self._by_key)):
            self._by_key, self.by_handle = dict(self._by_key), dict(self.by_handle)
            self._registered = {writer: dict(one) for writer, one in self._registered.items()}
            self.table.shrink()


__all__ = ["NEVER", "Entry", "Instance", "Instances"]
