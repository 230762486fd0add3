"""What a layer above knows of each key of a topic, found from the bytes of a payload.

Why here: a message whose key is known, and that comes from a writer known for that key, changes nothing that anybody
has to decide about. To see that takes a look at some bytes at known places, and one in a table: LogReader does it for
each message that it takes, and asks the layer above only about the others.

Rules: equal bytes in these places mean the same key. Not the other way round: a key may have several byte forms, and
each is learnt when it is first met. A payload that doesn't begin as it should, or is too short, has no key that could
be found so. What the layer above knows can only change by its own doing: it then calls Keyed.unsettle().
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from spindle_core.layout cimport log_record

# cpython.dict declares an object, which would count a reference that isn't ours.
cdef extern from "Python.h":
    PyObject *get_item "PyDict_GetItemWithError"(object table, object key) except? NULL


cdef class KeyPlaces:
    """Where payloads of one layout have their key.

    head    bytes with which each payload of the layout begins
    size    bytes of each such payload; 0 = they differ
    pieces  (offset, size) of each part of the key, in bytes; size 0: a length stands there, 4 bytes in little endian,
            and so many bytes behind it are the part
    Raises ValueError for more than 8 parts, for none, and for one that lies outside.
    """

    def __init__(self, bytes head not None, uint64_t size, pieces):
        pieces = list(pieces)
        if not 1 <= len(pieces) <= PIECES_MAX:
            raise ValueError(f"{len(pieces)} parts of a key: 1 to {PIECES_MAX} can be looked for")
        self.head, self.size, self.count = head, size, len(pieces)
        for k, (offset, length) in enumerate(pieces):
            if not 0 <= offset < 1 << 31 or not 0 <= length < 1 << 31 or (size and offset + (length or 4) > size):
                raise ValueError(f"a part of {length} bytes at {offset} isn't in a payload of {size} bytes")
            self.offsets[k], self.sizes[k] = offset, length

    cdef bytes find(self, const char *payload, uint64_t size):
        cdef uint64_t total = 0, at
        cdef uint32_t lengths[PIECES_MAX]
        cdef uint32_t starts[PIECES_MAX]
        cdef uint64_t head = PyBytes_GET_SIZE(self.head)
        cdef bytes raw
        cdef char *to
        cdef int k
        if size < head or (self.size and size != self.size) or memcmp(payload, PyBytes_AS_STRING(self.head), head):
            return None
        for k in range(self.count):
            at = self.offsets[k]
            lengths[k] = self.sizes[k]
            if lengths[k] == 0:
                if at + 4 > size:
                    return None
                memcpy(&lengths[k], payload + at, 4)     # once: it may change under us
                # The length is a part of the key's bytes: else two texts could trade their ends.
                total += 4
                at += 4
            if at + lengths[k] > size:
                return None
            starts[k] = <uint32_t>at
            total += lengths[k]
        if self.count == 1 and self.sizes[0]:
            return PyBytes_FromStringAndSize(payload + starts[0], lengths[0])
        raw = PyBytes_FromStringAndSize(NULL, total)
        to = PyBytes_AS_STRING(raw)
        for k in range(self.count):
            if self.sizes[k] == 0:
                memcpy(to, &lengths[k], 4)
                to += 4
            memcpy(to, payload + starts[k], lengths[k])
            to += lengths[k]
        return raw

    def of(self, const unsigned char[::1] payload not None):
        """The bytes of the key in a payload; None if it isn't of this layout."""
        return self.find(<const char *>&payload[0] if payload.shape[0] else NULL, payload.shape[0])


cdef class Keyed:
    """What there is under one key; the base of what the layer above keeps.

    handle, generation  the layer's own; each message that is given out says what they were
    new                 nothing of it was given out yet, since the layer last said so
    """

    def __init__(self, handle, generation):
        self.handle = handle
        self.generation = generation
        self.new = True

    def unsettle(self):
        """Messages of this key concern the layer above again, whoever wrote them."""
        memset(self.settled, 0, sizeof(self.settled))


cdef inline uint64_t writer_of(const log_record *r) noexcept:
    """Which writer it is, of the whole group; 0 for none."""
    if r.writer_id == 0:
        return 0
    if r.relay:
        return <uint64_t>1 << 62 | <uint64_t>r.relay << 16 | r.writer_id
    return <uint64_t>r.sender << 16 | r.writer_id


cdef int settle(Keyed keyed, const log_record *r) except -1:
    """From now on a message without a tag by this writer changes nothing."""
    keyed.settled[keyed.next_settled] = writer_of(r)
    keyed.next_settled = (keyed.next_settled + 1) % WRITERS_MAX
    return 0


cdef class KeyTable:
    """The keys that were met. `places` None: payloads have them nowhere in particular, so nothing is found here."""

    def __init__(self, KeyPlaces places=None):
        self.places = places
        self.by_raw = {}

    def __len__(self):
        return len(self.by_raw)

    cdef Keyed find_settled(self, const char *payload, uint64_t size, const log_record *r):
        """What is under the payload's key, if a message by this writer changes nothing about it; else None."""
        cdef bytes raw
        cdef PyObject *found
        cdef uint64_t writer = writer_of(r)
        cdef int k
        if self.places is None or writer == 0:
            return None
        raw = self.places.find(payload, size)
        if raw is None:
            return None
        found = get_item(self.by_raw, raw)
        if found == NULL:
            return None
        for k in range(WRITERS_MAX):
            if (<Keyed>found).settled[k] == writer:
                return <Keyed>found
        return None

    def find(self, payload):
        """What is under the key of a payload; None if that isn't known."""
        if self.places is None:
            return None
        raw = self.places.of(payload)
        return None if raw is None else self.by_raw.get(raw)

    def remember(self, payload, Keyed keyed not None):
        """The payload's key is that of `keyed`. A key that keeps coming in other bytes is not remembered in all."""
        raw = None if self.places is None else self.places.of(payload)
        if raw is None or (keyed.raws is not None and len(keyed.raws) >= RAWS_MAX):
            return
        self.by_raw[raw] = keyed
        keyed.raws = (raw,) if keyed.raws is None else (*keyed.raws, raw)

    def forget(self, Keyed keyed not None):
        """There is nothing under this key any more."""
        for raw in keyed.raws or ():
            self.by_raw.pop(raw, None)
        keyed.raws = None

    def shrink(self):
        """Gives back the room of what was forgotten."""
        self.by_raw = dict(self.by_raw)


@cython.no_gc
@cython.freelist(256)
cdef class Given:
    """The messages of one key in one collection that was given out.

    handle, generation, new  of the key at that moment
    count                    messages of the key in the collection
    """


cdef Given give(Keyed keyed, list opened):
    """One more message of this key is given out. `opened`: the keys of the collection that is being made."""
    cdef Given given = keyed.given
    if given is None:
        given = keyed.given = Given.__new__(Given)
        given.handle, given.generation, given.new = keyed.handle, keyed.generation, keyed.new
        given.count = 0
        keyed.new = False
        opened.append(keyed)
    given.count += 1
    return given


cdef int close_collection(list opened) except -1:
    """The collection is complete: what is given out next belongs to another one."""
    for keyed in opened:
        (<Keyed>keyed).given = None
    return 0


@cython.no_gc
cdef class KeyedInfo(MessageInfo):
    """Of a message of a topic with keys."""

    @property
    def given(self):
        """Given: the messages of its key that were given out with it."""
        return self.given

    @property
    def following(self):
        """How many of these come behind it."""
        return self.given.count - 1 - self.place
