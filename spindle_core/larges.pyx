"""Large samples of a node, as its control thread sees them. See large.pxi."""
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

from spindle_core.hot_path cimport (
    find_large,
    larges_add,
    larges_drop,
    larges_forget_want,
    larges_have,
    larges_unuse,
    larges_use,
    lock_larges,
    unlock_larges,
)
from spindle_core.large cimport (
    LARGE_WANTS_MAX,
    LARGES_MAX,
    LARGES_OF_INBOX,
    large_t,
    large_want_t,
    larges_t,
)
from spindle_core.layout cimport large_entry

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

ENTRY_SIZE = sizeof(large_entry)
OF_INBOX = LARGES_OF_INBOX


def make_entry(uint64_t id, uint64_t size, bytes first not None, bytes last not None):
    """What stands in the order for a sample of `size` bytes, whose first 8 and last 16 bytes these are."""
    cdef large_entry entry
    if len(first) != sizeof(entry.first) or len(last) != sizeof(entry.last):
        raise ValueError("an entry has the first 8 bytes of its sample, and the last 16")
    entry.id, entry.size = id, size
    memcpy(entry.first, PyBytes_AS_STRING(first), sizeof(entry.first))
    memcpy(entry.last, PyBytes_AS_STRING(last), sizeof(entry.last))
    return PyBytes_FromStringAndSize(<char *>&entry, sizeof(large_entry))


def entry_of(bytes payload not None):
    """(id, size) of a large sample, from what stands in the order. ValueError for anything else."""
    cdef large_entry entry
    if len(payload) != sizeof(large_entry):
        raise ValueError(f"the entry of a large sample has {sizeof(large_entry)} bytes, not {len(payload)}")
    memcpy(&entry, PyBytes_AS_STRING(payload), sizeof(large_entry))
    return entry.id, entry.size


cdef class Larges:
    """Of one node; also while its predicate thread runs."""

    def __cinit__(self):
        memset(&self.state, 0, sizeof(larges_t))

    cdef larges_t *pointer(self) noexcept:
        return &self.state

    def add(self, uint64_t id):
        """The node has the bytes of this sample; False where LARGES_MAX samples are there. What waits for it has to be
        told: Engine.add_large()."""
        return larges_add(&self.state, id)

    def drop(self, uint64_t id):
        """Takes that back, of one that has not come in the order; False if somebody names it."""
        return larges_drop(&self.state, id)

    def has(self, uint64_t id):
        return larges_have(&self.state, id)

    def use(self, uint64_t id):
        """The caller names it from now on, as a log does; False if it isn't there."""
        return larges_use(&self.state, id)

    def hold(self, uint64_t id):
        """As use(), of one that has yet to come in the order."""
        cdef large_t *x
        lock_larges(&self.state)
        x = find_large(&self.state, id)
        if x != NULL:
            x.uses += 1
        unlock_larges(&self.state)
        return x != NULL

    def unuse(self, uint64_t id):
        """Takes one use() back."""
        larges_unuse(&self.state, id)

    def wants(self):
        """What predicates have met and wait for: [(topic id, id, size, sender's node id, sequence), ...]. Nothing of it
        is checked."""
        cdef large_want_t wants[LARGE_WANTS_MAX]
        cdef uint32_t i, n
        lock_larges(&self.state)
        n = self.state.n_wants
        memcpy(wants, self.state.wants, n * sizeof(large_want_t))
        unlock_larges(&self.state)
        return [(wants[i].topic_id, wants[i].id, wants[i].size, wants[i].sender, wants[i].sequence) for i in range(n)]

    cdef void forget_wants(self) noexcept:
        """Of an epoch that is over. Parked."""
        self.state.n_wants = 0

    def forget_want(self, uint64_t id):
        """It can't be had. A predicate that still misses it wants it anew, when it looks."""
        lock_larges(&self.state)
        larges_forget_want(&self.state, id)
        unlock_larges(&self.state)

    def undelivered(self, ids):
        """Those of these samples that have not come in the order yet, as a set."""
        cdef uint64_t id
        cdef large_t *x
        found = set()
        for id in ids:
            lock_larges(&self.state)
            x = find_large(&self.state, id)
            if x != NULL and not x.delivered:
                found.add(id)
            unlock_larges(&self.state)
        return found

    def take_released(self):
        """Ids of samples that nobody names any more, since this was last asked: their memory is to be given back."""
        cdef uint64_t released[LARGES_MAX]
        cdef uint32_t i, n
        lock_larges(&self.state)
        n = self.state.n_released
        memcpy(released, self.state.released, n * sizeof(uint64_t))
        self.state.n_released = 0
        unlock_larges(&self.state)
        return [released[i] for i in range(n)]

    @property
    def room(self):
        """Samples that may be added."""
        return LARGES_MAX - self.state.count - self.state.n_released

    @property
    def count(self):
        """Samples of which the node has the bytes, as far as the predicates know."""
        return self.state.count
