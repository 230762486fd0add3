"""What the group agrees on about a topic, and the limits of it.

Why a specification of its own: the first node that declares a topic decides its type, level and sizes for the whole
group; everybody who comes later must want the same, or is told both sides of the difference (`check_same`).
The specification is part of every view, so all members always hold the same one.

Rules: `TopicSpec` is immutable and checked when made; `size_max` is in bytes, `window` in slots. Topic ids are 8 bits:
0 is never used, so a group has at most 255 topics at a time. The id of a deleted topic may become another topic's.
"""

from __future__ import annotations

import dataclasses

from spindle.errors import ConfigError, TopicMismatch
from spindle.group.levels import Level

TOPICS_MAX = 255  # 8-bit topic ids, 0 unused
NAME_BYTES_MAX = 255  # of a topic's or type's name, in UTF-8
TYPE_HASH_BYTES_MAX = 64
EVOLVES = b"~"  # first byte of a type hash: readers and writers settle among themselves who understands whom
KIND_BYTES = 9  # of such a hash, from the first: what all types of the topic have in common
SIZE_MAX_DEFAULT = 16384  # bytes, where neither declarer nor configuration says otherwise
SIZE_MAX_LIMIT = 64 << 20  # bytes of one slot
ENTRY_BYTES = 40  # what stands in a slot for a larger message, whose bytes go beside; a smaller slot takes none
# What a type may ask for by its largest sample: a ring has 8 slots at least, and every member one for each sender.
SLOT_OF_TYPE_MAX = 1 << 20
LARGE_SAMPLE_MAX = 4 << 30  # bytes of such a message; nodes may be configured to take less
TAG_MAX = 0xFF  # of a message, what it is to the layer above; 0: an ordinary one
WINDOW_MAX = 65536  # slots of one sender's ring
EFFECTS = 256  # one for each tag
# See the core's lasts.pxd.
EFFECT_SAMPLE, EFFECT_LEAVES, EFFECT_ENDS, EFFECT_OF_WRITER, EFFECT_OF_NODE, EFFECT_ALONE = 1, 2, 4, 8, 16, 32
EFFECT_CARRIED = 128
EFFECT_BOUND = EFFECT_OF_NODE  # with EFFECT_CARRIED
EFFECTS_ALL = 63 | EFFECT_CARRIED
CLEANUP_NEVER = 1 << 62  # ns; what is over for so long or longer is kept until its place is needed
RANK_BYTES, RANK_PLACE_MAX = 4, 16  # see the core's lasts.pxd
RANK_COUNTS, RANK_COUNTS_RANKED, RANK_YIELDS, RANK_PRESENT, RANK_PRESENT_RANKED = 251, 252, 253, 254, 255
TIMING_NONE, TIMING_UNTIL, TIMING_FOR, TIMING_WORD = range(4)  # see the core's timing.pxd
TIMING_SAYS, TIMING_STAMPED = 3, 4  # the bits of these; added to one of them
TABLE_BYTES = 8 << 20  # for the last messages of each key, where nobody says otherwise
TABLE_MESSAGES_MIN = 4  # of the largest; as many have room whatever history_bytes says
TABLE_OVERHEAD = 192  # bytes that a message takes there beside its payload, at most
SLOT_OVERHEAD = 64  # bytes of a slot beside the payload: header, rounded up to a cache line
RING_BYTES = 512 << 10  # what one sender's ring takes at least and never twice, so that it stays in cache
WINDOW_CHOSEN_MIN = 8  # slots; below this a sender waits for every acknowledgement
WINDOW_CHOSEN_MAX = 1024  # slots; more does not make batches larger in practice
INBOX_BYTES = 512 << 10  # what one writer's inbox should take so that it stays in cache
INBOX_SLOTS_MIN = 4
INBOX_SLOTS_MAX = 1024


def check_name(label: str, text: str) -> None:
    """Raise ConfigError if a topic or type can't be called this."""
    size = len(text.encode(errors="surrogatepass"))
    if not 1 <= size <= NAME_BYTES_MAX:
        shown = repr(text) if len(text) <= 40 else f"{text[:40]!r}..."
        raise ConfigError(f"{label} {shown} has {size} bytes in UTF-8, but must have 1 to {NAME_BYTES_MAX}")
    if any(ord(c) < 32 or c == "\x7f" for c in text):
        raise ConfigError(f"{label} {text[:40]!r} contains a control character")
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise ConfigError(f"{label} {text[:40]!r} is no text in UTF-8")


def _are_ranks(ranks: bytes) -> bool:
    presents = ranks.count(RANK_PRESENT), ranks.count(RANK_PRESENT_RANKED)
    others = {one for one in ranks if one not in (RANK_PRESENT, RANK_PRESENT_RANKED)}
    return presents == (1, 1) and (others <= {RANK_COUNTS, RANK_COUNTS_RANKED} or all(
        one in (0, RANK_YIELDS) or RANK_BYTES <= one <= RANK_PLACE_MAX for one in others))


def all_count(ranks: bytes) -> bool:
    """Of each key all writers count, and not only the one of the highest rank (TopicSpec.ranks)."""
    return not ranks or RANK_COUNTS in ranks or RANK_COUNTS_RANKED in ranks


def ring_bytes(window: int, size_max: int) -> int:
    """Memory of a ring for `window` messages of `size_max` bytes, bytes (an upper bound).

    A ring has the next power of two of slots (ring_slots() of the core), however many of them may be used at once.
    """
    return (1 << max(0, window - 1).bit_length()) * (size_max + SLOT_OVERHEAD)


def choose_window(size_max: int) -> int:
    """Slots of a ring for messages of `size_max` bytes: all that the ring has, so that nobody waits for memory that is
    there anyway, and as many as let the ring of one sender stay in cache."""
    slots = -(-RING_BYTES // (size_max + SLOT_OVERHEAD))
    return max(WINDOW_CHOSEN_MIN, min(WINDOW_CHOSEN_MAX, 1 << (slots - 1).bit_length()))


def choose_inbox_slots(size_max: int) -> int:
    """Slots between a writer and its node for messages of `size_max` bytes."""
    return max(INBOX_SLOTS_MIN, min(INBOX_SLOTS_MAX, INBOX_BYTES // (size_max + SLOT_OVERHEAD)))


@dataclasses.dataclass(frozen=True)
class TopicSpec:
    """What a declarer wants of a topic.

    name, type_name  UTF-8, 1 to 255 bytes
    type_hash        identifies the type's layout; equal hashes mean that both sides understand each other's payloads.
                     Of hashes that begin with EVOLVES only KIND_BYTES must be equal, and their types' names need not
    level            see `spindle.group.levels`
    size_max         bytes of a slot; larger messages go beside (`takes_large`). 0 = as the declaring node is configured
                     ([topics] size_max, 16384)
    window           slots of each sender's ring; 0 = as the declaring node is configured, or chosen from size_max
    history_depth    messages a volatile or logged topic keeps for late joiners; 0 = as many as history_bytes hold
    history_bytes    memory for them at each subscribing node; 0 = the node's default
    departure        tag (1 to 255) of a message without payload that every member finds behind the last message of a
                     view for each sender that didn't live into the next one: its writers have all ended. 0 = none
    effects          of each tag, what a message with it does to its key: 256 numbers, sums of EFFECT_...; messages have
                     keys then, history_depth counts the samples of each, and the limits below hold. Empty = messages
                     have none
    ranks            of each tag, where a message with it says which rank its writer has; of each key only one writer
                     counts then, the one of the highest rank: 256 numbers, the place of a signed number of 4 bytes in
                     little endian, in bytes from the end of the payload (4 to RANK_PLACE_MAX; 0: the rank is 0), or a
                     RANK_... Each of RANK_PRESENT and RANK_PRESENT_RANKED has one tag. It takes `effects`, without
                     EFFECT_CARRIED. Or RANK_COUNTS and RANK_COUNTS_RANKED for all but these two: all writers count, and
                     late joiners hear who there is of them. Empty = all count, and they hear of those whose samples
                     are kept
    timing           of each tag, what a message with it says of time: 256 numbers, each a TIMING_...; where messages
                     count for a time only, the order says when that is over, by a message with the tag of TIMING_WORD,
                     of which there is one, and which has no effect. Empty = they say nothing. TIMING_STAMPED added:
                     source timestamps of these messages decide something, so those far ahead of their node's clock are
                     refused
    samples_max      messages kept of all keys together; 0 = no limit. What is over goes first, then the oldest
    keys_max         keys of which something is kept; 0 = no limit. What is over goes first, then what is silent longest
    cleanup_ns       how long a key is kept that is over: it has ended, and all whose samples are kept have left it. By
                     what the order says of time, so `timing` is needed; CLEANUP_NEVER and more = for ever
    Raises ConfigError if a value is impossible.
    """

    name: str
    type_name: str = "bytes"
    type_hash: bytes = b""
    level: Level = Level.ATOMIC
    size_max: int = 0
    window: int = 0
    history_depth: int = 0
    history_bytes: int = 0
    departure: int = 0
    effects: bytes = b""
    timing: bytes = b""
    samples_max: int = 0
    keys_max: int = 0
    cleanup_ns: int = 0
    ranks: bytes = b""

    def __post_init__(self) -> None:
        for label, text in (("topic name", self.name), ("type name", self.type_name)):
            check_name(label, text)
        if len(self.type_hash) > TYPE_HASH_BYTES_MAX:
            raise ConfigError(f"type hash of topic {self.name!r} has {len(self.type_hash)} bytes, "
                              f"limit {TYPE_HASH_BYTES_MAX}")
        try:
            object.__setattr__(self, "level", Level(self.level))
        except ValueError:
            raise ConfigError(f"level {self.level!r} of topic {self.name!r} is unknown; use one of "
                              f"{', '.join(f'{one.name} ({one.value})' for one in Level)}") from None
        for label, value, low, high in (
            ("size_max", self.size_max, 0, SIZE_MAX_LIMIT), ("window", self.window, 0, WINDOW_MAX),
            ("history_depth", self.history_depth, 0, 1 << 40), ("history_bytes", self.history_bytes, 0, 1 << 36),
            ("departure", self.departure, 0, TAG_MAX), ("samples_max", self.samples_max, 0, 1 << 40),
            ("keys_max", self.keys_max, 0, 1 << 40), ("cleanup_ns", self.cleanup_ns, 0, (1 << 63) - 1),
        ):
            if not low <= value <= high:
                raise ConfigError(f"{label} {value} of topic {self.name!r} is out of range {low} to {high}")
        if self.effects and (len(self.effects) != EFFECTS or any(one & ~EFFECTS_ALL for one in self.effects)):
            raise ConfigError(f"effects of topic {self.name!r} must be {EFFECTS} numbers, each of the bits "
                              f"{EFFECTS_ALL:#x}")
        if self.effects and not self.level.keeps_history:
            raise ConfigError(f"topic {self.name!r} is to keep messages of each key: that takes a level that keeps "
                              "history")
        if (self.samples_max or self.keys_max or self.cleanup_ns) and not self.effects:
            raise ConfigError(f"topic {self.name!r} has limits for its keys (samples_max, keys_max, cleanup_ns), and "
                              "effects don't say what its messages do to their keys")
        if self.ranks and (len(self.ranks) != EFFECTS or not self.effects or not _are_ranks(self.ranks)
                           or any(self.effects[tag] for tag in range(EFFECTS) if self.ranks[tag] >= RANK_YIELDS)):
            raise ConfigError(f"ranks of topic {self.name!r} must be {EFFECTS} numbers: 0, {RANK_BYTES} to "
                              f"{RANK_PLACE_MAX}, {RANK_YIELDS}, or else {RANK_COUNTS} and {RANK_COUNTS_RANKED}, and "
                              f"once each {RANK_PRESENT} and {RANK_PRESENT_RANKED}; from {RANK_YIELDS} on of tags "
                              "without effects, and effects must be said")
        if not all_count(self.ranks) and any(one & EFFECT_CARRIED for one in self.effects):
            raise ConfigError(f"topic {self.name!r} can't have both ranks and writers that speak for others "
                              "(EFFECT_CARRIED)")
        says = bytes(one & TIMING_SAYS for one in self.timing)
        if says and (len(says) != EFFECTS or max(self.timing) > TIMING_SAYS + TIMING_STAMPED
                     or says.count(TIMING_WORD) != 1 or says[0] == TIMING_WORD):
            raise ConfigError(f"timing of topic {self.name!r} must be {EFFECTS} numbers from 0 to "
                              f"{TIMING_SAYS + TIMING_STAMPED}, one of which says {TIMING_WORD}")
        if self.effects and self.timing and self.effects[self.time_tag]:
            raise ConfigError(f"the message of topic {self.name!r} that says the time must have no effect on keys")
        if 0 < self.cleanup_ns < CLEANUP_NEVER and not self.timing:
            raise ConfigError(f"topic {self.name!r} is to keep what is over for {self.cleanup_ns} ns: that takes "
                              "timing, with a tag of the message that says what time it is")

    @property
    def takes_large(self) -> bool:
        """True if messages may be larger than a slot."""
        return self.size_max >= ENTRY_BYTES

    @property
    def time_tag(self) -> int:
        """Tag of the message that says what time it is; 0: none does."""
        return bytes(one & TIMING_SAYS for one in self.timing).index(TIMING_WORD) if self.timing else 0

    @property
    def stamped(self) -> bool:
        """True if source timestamps decide something in it."""
        return any(one & TIMING_STAMPED for one in self.timing)

    @property
    def table_bytes(self) -> int:
        """Memory for the last messages of each key, at each member the same; 0 for topics without keys."""
        if not self.effects:
            return 0
        return max(self.history_bytes or TABLE_BYTES, TABLE_MESSAGES_MIN * (self.size_max + TABLE_OVERHEAD))

    def with_window(
        self, size_max: int = SIZE_MAX_DEFAULT, window: int = 0, table_bytes: int = TABLE_BYTES
    ) -> TopicSpec:
        """The same specification with nothing left open: `size_max`, `window` and, for a topic with keys, `table_bytes`
        are taken where it says 0, and where that leaves no window it is chosen so that the ring stays in cache."""
        size_max = self.size_max or size_max
        window = self.window or window or choose_window(size_max)
        history_bytes = self.history_bytes or (table_bytes if self.effects else 0)
        return dataclasses.replace(self, size_max=size_max, window=window, history_bytes=history_bytes)

    def check_same(self, wanted: TopicSpec) -> None:
        """Raise TopicMismatch if `wanted` differs from this agreed specification in what must be equal everywhere.

        What is left open (`size_max`, `window` or `departure` 0), the history limits, whether they count for each key
        and how long one is kept that is over, what messages say of time, and types that evolve are taken from the first
        declarer without complaint.
        """
        differences = []
        kind = self.type_hash[:KIND_BYTES]
        evolves = kind.startswith(EVOLVES) and kind == wanted.type_hash[:KIND_BYTES]
        for field in ("level", "size_max") if evolves else ("type_name", "type_hash", "level", "size_max"):
            agreed, other = getattr(self, field), getattr(wanted, field)
            named = field == "type_hash" and self.type_name != wanted.type_name  # the names say enough
            if agreed != other and not named and not (field == "size_max" and other == 0):
                parts = _record_differences(agreed, other) if field == "type_name" else []
                differences.append(f"{field} is {_show(agreed)} in the group, you want {_show(other)}"
                                   f"{' (' + '; '.join(parts) + ')' if parts else ''}")
        for field in ("window", "departure"):
            agreed, other = getattr(self, field), getattr(wanted, field)
            if other and other != agreed:
                differences.append(f"{field} is {agreed} in the group, you want {other}")
        if differences:
            from shlex import quote  # for people alone, and rarely

            name = quote(self.name)
            anew = (
                ". It is logged, so what is on disk would not fit: to declare it anew, close its readers and writers "
                f"(`spindle topics {name}` shows them), then give up what it is with `spindle topics {name} "
                "--redefine`, which puts its journals aside"
                ) if self.level is Level.LOGGED else (
                ". It can be declared anew as soon as no program has a reader or writer of it any more; "
                f"`spindle topics {name}` shows those that have")
            raise TopicMismatch(f"topic {self.name!r} exists with another definition: {'; '.join(differences)}. "
                                f"Use the same definition or another topic name{anew}")


def _record_differences(agreed: str, other: str) -> list[str]:
    """Field by field, if both are the names of NumPy records, in full; else nothing."""
    ours, theirs = _record_fields(agreed), _record_fields(other)
    if not ours or not theirs:
        return []
    found = [f"field {name} is {kind} there, {theirs[name]} here" if name in theirs else f"you have no field {name}"
             for name, kind in ours.items() if theirs.get(name) != kind]
    found += [f"the group has no field {name}" for name in theirs if name not in ours]
    return found or ["the fields are in another order"]


def _record_fields(type_name: str) -> dict[str, str]:
    """Fields of "numpy(name:kind,...)"; nothing if it is no such name, or cut."""
    if not type_name.startswith("numpy(") or not type_name.endswith(")") or type_name.endswith("...)"):
        return {}
    parts = [part.rpartition(":") for part in type_name[len("numpy("):-1].split(",")]
    return {name: kind for name, colon, kind in parts} if all(colon and name for name, colon, _ in parts) else {}


def _show(value: object) -> str:
    if isinstance(value, Level):
        return value.name
    if isinstance(value, bytes):
        return value.hex() or "empty"
    return repr(value)


@dataclasses.dataclass(frozen=True)
class TopicInfo:
    """An agreed topic as of one view. `members` and `senders` are node ids in rank order; senders are members too.

    awaits_definition: it was logged, and is given up: whoever declares it next says what it is
    """

    spec: TopicSpec
    topic_id: int
    members: tuple[int, ...] = ()
    senders: tuple[int, ...] = ()
    awaits_definition: bool = False


def is_given_up(name: str) -> TopicMismatch:
    """For whoever opens a logged topic that is to be declared anew. It isn't unknown: what a program declared before
    must not be declared again just because it is opened, as that puts journals aside."""
    from shlex import quote

    return TopicMismatch(f"what the logged topic {name!r} was has been given up (`spindle topics {quote(name)} "
                         "--redefine`): whoever declares it next says what it is from now on")
