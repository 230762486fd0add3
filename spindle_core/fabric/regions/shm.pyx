"""Regions of nodes on one host: mapped, and reached by the own processor.

A request happens in the call that posts it, and completes there. What tells a peer's ended keys is a page of the
owner's with the version of each key, which is looked at before each request. So a key ends for all who look later; who
has just looked may still be in its memory, which stays mapped here as long.

Messages go through a ring for each direction, in memory that its sender alone writes; how far they were taken stands in
the receiver's. A ring wakes who sleeps (bell.pxd).

Rules: what a peer's memory says is read once, and checked before use.
"""
import os

from libc.errno cimport EAGAIN
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from spindle_core.atomics cimport (
    fence_store_load,
    u32_load_acquire,
    u32_store_release,
    u64_compare_swap_acq_rel,
    u64_fetch_add_acq_rel,
    u64_load_acquire,
    u64_load_relaxed,
    u64_store_release,
)
from spindle_core.bell cimport bell_of, fall_asleep, ring_once, wake_up
from spindle_core.events cimport c_close, event_clear
from spindle_core.fabric.regions.boxes cimport HEAD_SIZE, boxed, next_length, put_message, take_at
from spindle_core.fabric.regions.flights cimport done
from spindle_core.fabric.regions.regions cimport (
    ATOMIC_WITH_OWNER,
    KEYS_MAX,
    MESSAGE_SIZE_MAX,
    MESSAGES_WAITING_MAX,
    REQUEST_ADD,
    REQUEST_AFTER,
    REQUEST_DONE,
    REQUEST_ENDED,
    REQUEST_READ,
    REQUEST_SIGNALLED,
    REQUEST_WRITE,
    Part,
    Regions,
    flight_of,
    flight_t,
    peer_t,
    place_of,
)
from spindle_core.fabric.words cimport copy_words
from spindle_core.layout cimport BELL_MAGIC, POST_RING_OFFSET, bell_page, key_entry, post_page
from spindle_core.memory cimport Mapping


cdef inline char *ring_of(const post_page *page) noexcept nogil:
    return <char *>page + POST_RING_OFFSET


cdef inline uint32_t carry_out(const shm_way_t *way, const flight_t *f, uint64_t *found) noexcept nogil:
    """Does what the request says; how that went."""
    cdef char *place = f.reached.base + f.request.offset
    # SYNC POINT: key. Pairs with ShmPart.remove_memory(): whoever sees a key ended stays out.
    if u32_load_acquire(&way.keys[place_of(f.reached.key)].version) != f.reached.key >> 32:
        return REQUEST_ENDED
    if f.request.kind == REQUEST_READ:
        copy_words(f.request.local, place, f.request.length)
    elif f.request.kind == REQUEST_WRITE:
        copy_words(place, f.request.local, f.request.length)
    elif f.request.kind == REQUEST_ADD:
        found[0] = u64_fetch_add_acq_rel(<uint64_t *>place, f.request.first)
    else:
        found[0] = u64_compare_swap_acq_rel(<uint64_t *>place, f.request.first, f.request.second)
    return REQUEST_DONE


cdef void shm_carry(void *self, uint32_t peer) noexcept nogil:
    cdef shm_part_t *s = <shm_part_t *>self
    cdef peer_t *p = &s.regions.peers[peer]
    cdef flight_t *f
    cdef uint64_t found, number
    cdef uint32_t status, after = 0
    while p.sent < p.posted:
        number = p.sent
        f = flight_of(p, number)
        p.sent += 1
        found = 0
        if after:
            after -= 1
            status = REQUEST_AFTER
            if not f.request.flags & REQUEST_SIGNALLED:
                continue
        else:
            status = carry_out(&s.ways[peer], f, &found)
            if status != REQUEST_DONE:
                after = f.left
            elif not f.request.flags & REQUEST_SIGNALLED:
                if f.request.kind > REQUEST_WRITE and f.request.local != NULL:
                    (<uint64_t *>f.request.local)[0] = found
                continue
        done(s.regions, peer, number, status, found)


cdef int shm_send(void *self, uint32_t peer, const char *data, uint32_t length) noexcept nogil:
    cdef shm_way_t *way = &(<shm_part_t *>self).ways[peer]
    cdef uint64_t sent = u64_load_relaxed(&way.mine.sent)
    # SYNC POINT: message reuse. Pairs with shm_receive(): the peer is done with these bytes before it counts them.
    if sent + boxed(length) - u64_load_acquire(&way.theirs.taken) > MESSAGES_WAITING_MAX:
        return -EAGAIN
    put_message(ring_of(way.mine), MESSAGES_WAITING_MAX, sent, data, length)
    # SYNC POINT: message. Pairs with shm_waiting(): the message before the count.
    u64_store_release(&way.mine.sent, sent + boxed(length))
    fence_store_load()
    ring_once(way.bell, way.bell_fd, &way.rung)
    return 0


cdef int shm_waiting(void *self, uint32_t peer) noexcept nogil:
    cdef shm_way_t *way = &(<shm_part_t *>self).ways[peer]
    return next_length(ring_of(way.theirs), MESSAGES_WAITING_MAX, u64_load_relaxed(&way.mine.taken),
                       u64_load_acquire(&way.theirs.sent), MESSAGE_SIZE_MAX)


cdef void shm_receive(void *self, uint32_t peer, char *into, uint32_t length) noexcept nogil:
    cdef shm_way_t *way = &(<shm_part_t *>self).ways[peer]
    cdef uint64_t taken = u64_load_relaxed(&way.mine.taken)
    take_at(ring_of(way.theirs), MESSAGES_WAITING_MAX, taken + HEAD_SIZE, into, length)
    u64_store_release(&way.mine.taken, taken + boxed(length))


cdef void shm_end(void *self, uint32_t peer) noexcept nogil:
    """Who is cut is not looked at: all else is in the calls."""


cdef void shm_sleep(void *self) noexcept nogil:
    fall_asleep((<shm_part_t *>self).bell)


cdef void shm_wake(void *self) noexcept nogil:
    cdef shm_part_t *s = <shm_part_t *>self
    wake_up(s.bell)
    event_clear(s.bell_fd)


cdef class ShmPart(Part):
    """The way to peers on this host. `bell` and `bell_fd`: this node's doorbell, a page for peers to map and the
    eventfd that they ring for messages; one thread sleeps there.

    OSError where no descriptor or memory is left.
    """

    def __cinit__(self, Regions regions not None):
        self.bell_fd = -1
        self.state = <shm_part_t *>calloc(1, sizeof(shm_part_t))
        if self.state == NULL:
            raise MemoryError()

    def __init__(self, Regions regions not None):
        self.kept = [None] * PEERS_MAX
        self.bell = Mapping.create("spindle-bell", sizeof(bell_page))
        (<bell_page *>self.bell.base).magic = BELL_MAGIC
        self.bell.seal_writes()
        self.bell_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.keys = Mapping.create("spindle-keys", KEYS_MAX * sizeof(key_entry))
        self.keys.seal_writes()
        self.state.regions = regions.state
        self.state.bell = <bell_page *>self.bell.base
        self.state.bell_fd = self.bell_fd
        self.state.keys = <key_entry *>self.keys.base
        self.table.self = self.state
        self.table.capabilities = ATOMIC_WITH_OWNER
        self.table.carry = shm_carry
        self.table.send = shm_send
        self.table.waiting = shm_waiting
        self.table.receive = shm_receive
        self.table.end = shm_end
        self.table.sleep = shm_sleep
        self.table.wake = shm_wake
        Part.__init__(self, regions, "shm")

    @property
    def wait_fd(self):
        """The doorbell, while somebody sleeps."""
        return self.bell_fd

    @staticmethod
    def make_post():
        """What one peer needs of this node: memory for messages to it. Only this node can write it."""
        cdef Mapping page = Mapping.create("spindle-post", POST_RING_OFFSET + MESSAGES_WAITING_MAX)
        page.seal_writes()
        return page

    def connect(self, Mapping mine not None, Mapping keys not None, Mapping theirs not None, Mapping bell not None,
                int bell_fd):
        """Connects a peer; returns its number. `mine`: what make_post() gave for it; `keys`, `theirs` and `bell`: its
        page of keys, what it made for this node, and its doorbell, mapped. Takes ownership of `bell_fd`.

        ValueError where a mapping is not what it should be, ConnectionError where there are PEERS_MAX peers.
        """
        cdef shm_way_t *way
        cdef bell_page *page
        cdef uint32_t peer
        try:
            if mine.size < POST_RING_OFFSET + MESSAGES_WAITING_MAX or theirs.size < mine.size:
                raise ValueError(f"memory for messages has {POST_RING_OFFSET + MESSAGES_WAITING_MAX} bytes")
            if not mine.writable or keys.size < KEYS_MAX * sizeof(key_entry):
                raise ValueError("this is no page of keys, or the own memory for messages is not mapped for writing")
            page = bell_of(bell)
            peer = self.take_peer()
        except BaseException:
            os.close(bell_fd)
            raise
        way = &self.state.ways[peer]
        way.mine = <post_page *>mine.base
        way.theirs = <post_page *>theirs.base
        way.bell = page
        way.bell_fd = bell_fd
        way.rung = 0
        way.keys = <key_entry *>keys.base
        self.kept[peer] = (mine.view(), theirs.view(), keys.view(), bell.view())
        return peer

    def give_up(self, uint32_t peer):
        """As in Part."""
        if self.kept[peer] is not None:
            os.close(self.state.ways[peer].bell_fd)
            self.state.ways[peer].bell = NULL
            self.kept[peer] = None

    def add_memory(self, uint64_t key, Mapping memory, begin, size, uint32_t rights):
        """As in Part."""
        cdef key_entry *entry = &self.state.keys[place_of(key)]
        # SYNC POINT: place. Pairs with memory_at(): after the end of the last key, and before this one is open.
        u32_store_release(&entry.fd, <uint32_t>memory.fd)
        u64_store_release(&entry.inode, os.fstat(memory.fd).st_ino if memory.fd >= 0 else 0)
        u32_store_release(&entry.version, <uint32_t>(key >> 32))

    def remove_memory(self, uint64_t key):
        """As in Part."""
        u32_store_release(&self.state.keys[place_of(key)].version, 0)

    def memory_at(self, uint32_t peer, uint64_t key):
        """Where the memory lies that a peer has registered under this key: the descriptor in its process (-1: it has
        none), and the inode of the file. None where the key isn't open. They are its own if the key is still open when
        they have been used; else they may be of later ones."""
        cdef const key_entry *entry = &self.state.ways[peer].keys[place_of(key) % KEYS_MAX]
        if self.kept[peer] is None or u32_load_acquire(&entry.version) != key >> 32:
            return None
        # SYNC POINT: place. Pairs with add_memory().
        return <int>u32_load_acquire(&entry.fd), u64_load_acquire(&entry.inode)

    def __dealloc__(self):
        cdef uint32_t i
        if self.state != NULL:
            for i in range(<uint32_t>PEERS_MAX):           # of `kept` the garbage collector may have left nothing
                if self.state.ways[i].bell != NULL:
                    c_close(self.state.ways[i].bell_fd)
            free(self.state)
        if self.bell_fd >= 0:
            c_close(self.bell_fd)
