"""Regions for Python: who registers memory, reaches that of others, and posts requests for it.

`Regions` is what one node, or one program, has of its own and of others. Parts (shm, tcp, verbs, sim) add ways to peers
to it. The hot path is C (flights): whoever drives posts lists from nogil code, or by `Regions.post` (requests).

Rules: one thread at a time drives an object and its parts. Memory that peers may use, or that a request on its way is
for, stays mapped as long.
"""
import errno
import select
import struct
from collections import deque

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from spindle_core.fabric.regions.flights cimport abandon, end_peer, post
from spindle_core.fabric.regions.requests cimport Asker, RequestList
from spindle_core.memory cimport Mapping

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

REQUESTS_IN_LIST = LIST_MAX
REQUESTS_TO_PEER = FLIGHTS_MAX
PEERS = PEERS_MAX
INLINE_SIZE = REQUEST_INLINE_MAX
MESSAGE_SIZE = MESSAGE_SIZE_MAX
MESSAGES_WAITING = MESSAGES_WAITING_MAX

GRANT = struct.Struct("<QQIIQ")          # key, size in bytes, rights, and of a device: its key, and the address
WHY = {
    errno.ENOENT: "there is no such region, or it was forgotten",
    errno.EACCES: "the grant doesn't allow it: a region is open to reads, and to one peer's writes or to atomics",
    errno.ERANGE: f"it goes beyond the region, or more than {REQUEST_SIZE_MAX} bytes or none, or an atomic isn't on 8"
                  " bytes",
    errno.EFAULT: "this node's memory for it is not known to the way to that peer",
    errno.EINVAL: f"a list is of 1 to {LIST_MAX} requests, all for one peer",
}


cdef class Part:
    """A way to peers. Its subclasses connect them."""

    def __init__(self, Regions regions not None, str name not None):
        self.name = name
        self.regions = regions
        regions.add_part(self)

    cdef uint32_t take_peer(self) except? 0xFFFFFFFF:
        """A free number for a peer of this part. ConnectionError if there is none."""
        cdef uint32_t i
        cdef peer_t *p
        for i in range(<uint32_t>PEERS_MAX):
            p = &self.regions.state.peers[i]
            if p.part == NULL:
                if p.flights == NULL:
                    p.flights = <flight_t *>calloc(FLIGHTS_MAX, sizeof(flight_t))
                if p.flights == NULL:
                    raise MemoryError()
                p.part = &self.table
                p.posted = p.sent = p.done = p.bytes = 0
                p.cut = p.failed = 0
                self.regions.state.strangers += 1
                p.identity = <uint64_t>1 << 63 | self.regions.state.strangers
                return i
        raise ConnectionError(f"{PEERS_MAX} peers are connected: the limit")

    @property
    def wait_fd(self):
        """Readable when progress() has something to do; -1: never."""
        return -1

    def give_up(self, uint32_t peer):
        """Frees what a peer that was cut had here."""

    def why(self, uint32_t reason):
        """In words, why a connection is over."""
        return f"reason {reason}"

    def add_memory(self, uint64_t key, Mapping memory, begin, size, uint32_t rights):
        """Lets peers use a region of this node: `size` bytes of this memory, from `begin` on."""

    def remove_memory(self, uint64_t key):
        """From here on nothing that a peer asks of this key begins."""

    def busy(self, Mapping memory):
        """Something that has begun still reads or fills this memory."""
        return False

    def know(self, Mapping memory):
        """Requests may use this memory of this node. Idempotent."""

    def let_go(self, Mapping memory):
        """No request uses this memory any more; it need not have been known."""

    def remote(self, uint64_t key):
        """(device's key, address) for the grant."""
        return 0, 0

    def close(self):
        """Ends all connections. Idempotent."""


cdef class Regions:
    """Memory of this node that others may use, and of others that this node may."""

    def __cinit__(self):
        self.state = <regions_t *>calloc(1, sizeof(regions_t))
        if self.state == NULL:
            raise MemoryError()
        self.memories = {}
        self.ending = {}
        self.known = {}
        self.reached = {}
        self.versions = {}
        self.parts = []
        self.flying = [deque() for _ in range(PEERS_MAX)]
        self.free_keys = list(range(KEYS_MAX - 1, -1, -1))
        self.free_reached = list(range(REACHED_MAX - 1, -1, -1))

    # ---- parts and peers ----

    def add_part(self, Part part not None):
        """For parts. ValueError where atomics that peers were promised would not be atomic any more."""
        parts = [*self.parts, part]
        if not atomic_together(parts) and any(self.rights_of(key) & RIGHT_ATOMIC for key in self.memories):
            raise ValueError(f"regions are open to atomics, and those of {part.name} are not atomic against others")
        for key, view in self.memories.items():
            part.add_memory(key, view.obj, self.begin_of(key), self.state.memories[place_of(key)].size,
                            rights_by(part, self.rights_of(key)))
        self.parts = parts

    def keep_atomics_from(self, Part part not None):
        """Uses this way for everything but atomics from now on, so that those of the others may be atomic against each
        other. ValueError where regions are open to atomics already."""
        if any(self.rights_of(key) & RIGHT_ATOMIC for key in self.memories):
            raise ValueError("regions are open to atomics already")
        part.table.capabilities |= WITHOUT_ATOMICS

    def part_of(self, peer):
        """Name of the way to a peer. ConnectionError if it isn't connected."""
        return self.part(peer).name

    cdef Part part(self, peer):
        cdef Part part
        if 0 <= peer < PEERS_MAX:
            for part in self.parts:
                if self.state.peers[<uint32_t>peer].part == &part.table:
                    return part
        raise ConnectionError(f"there is no peer {peer}")

    def cut(self, peer):
        """Ends everything with one peer; what is on the way to it completes as cut. Its number is free after
        `forget_peer`. Idempotent."""
        self.part(peer)
        end_peer(self.state, peer, 0)

    def failures(self):
        """{peer: why its connection is over}, without those that were cut here."""
        cdef uint32_t i, why
        found = {}
        for i in range(<uint32_t>PEERS_MAX):
            why = self.state.peers[i].failed
            if self.state.peers[i].part != NULL and why:
                found[i] = "its messages make no sense" if why == PEER_NONSENSE else self.part(i).why(why)
        return found

    def forget_peer(self, uint32_t peer):
        """Frees the number of a peer, cut first if it wasn't; its regions are reached no more, and what it was granted
        is open to nobody's writes."""
        cdef uint32_t i
        part = self.part(peer)
        end_peer(self.state, peer, 0)
        part.give_up(peer)
        for i in range(<uint32_t>REACHED_MAX):
            if self.state.reached[i].rights and self.state.reached[i].peer == peer:
                self.forget(<uint64_t>self.state.reached[i].uses << 32 | i)
        self.flying[peer].clear()
        self.state.peers[peer].part = NULL
        identity = self.state.peers[peer].identity
        for i in range(<uint32_t>PEERS_MAX):
            if self.state.peers[i].part != NULL and self.state.peers[i].identity == identity:
                return           # the same one is connected by another way
        for i in range(<uint32_t>KEYS_MAX):
            if self.state.memories[i].writer == identity:
                self.state.memories[i].writer = 0
                self.state.memories[i].rights &= ~<uint32_t>RIGHT_WRITE

    def identify(self, peer, uint64_t identity):
        """Says who is at the other end of a connection: all with one identity, from 1 to 2**63 - 1, are one writer.
        Before it is granted anything; ValueError."""
        if not 0 < identity < <uint64_t>1 << 63:
            raise ValueError(f"identity {identity}: must be between 1 and 2**63 - 1")
        self.part(peer)
        self.state.peers[<uint32_t>peer].identity = identity

    @property
    def atomic_with_owner(self):
        """Atomics of every part are atomic against those of the owner's processor."""
        return all_with_owner(self.parts)

    # ---- own memory ----

    def register(self, Mapping memory not None, *, begin=0, size=None, writer=None, bint atomics=False,
                 bint with_owner=False):
        """Opens memory to peers, all of it or `size` bytes from `begin` on: all may read it; `writer` alone may write
        it, or all may change words by `atomics`. Returns its key, which never comes back. `with_owner`: the owner
        changes words itself, by its processor's atomics.

        ValueError for both at once, for a writer that isn't connected, for a range that isn't in the memory or of which
        words would not be aligned, where atomics are not as asked for, or KEYS_MAX regions.
        """
        cdef uint32_t place
        cdef memory_t *m
        size = memory.size - begin if size is None else size
        if not 0 <= begin < memory.size or not 1 <= size <= memory.size - begin or (begin & 7 and atomics):
            raise ValueError(f"{size} bytes at {begin} of a mapping of {memory.size} are no region: of atomics it"
                             " begins on 8 bytes")
        if writer is not None and atomics:
            raise ValueError("a region is open to the writes of one peer or to the atomics of all, not to both")
        if memory.base == NULL or not memory.writable and (atomics or writer is not None):
            raise ValueError("memory that peers change must be mapped for writing")
        if writer is not None:
            self.part(writer)
        if atomics and not atomic_together(self.parts):
            raise ValueError("atomics of these ways are not atomic against each other: "
                             + ", ".join(part.name for part in self.parts))
        if atomics and with_owner and not self.atomic_with_owner:
            raise ValueError("this device's atomics are not atomic against those of the processor")
        if not self.free_keys:
            raise ValueError(f"{KEYS_MAX} registered regions are the limit")
        place = self.free_keys.pop()
        version = self.versions.get(place, 0) + 1
        key = <uint64_t>place | <uint64_t>version << 32
        rights = RIGHT_READ | (RIGHT_ATOMIC if atomics else 0) | (0 if writer is None else RIGHT_WRITE)
        added = []
        try:
            for part in self.parts:
                part.add_memory(key, memory, begin, size, rights_by(part, rights))
                added.append(part)
        except BaseException:
            self.free_keys.append(place)
            for part in added:
                part.remove_memory(key)
            raise
        self.versions[place] = version
        self.memories[key] = memory.view()                 # keeps it mapped
        m = &self.state.memories[place]
        m.base = memory.base + <uint64_t>begin
        m.size = size
        m.version = version
        m.writer = 0 if writer is None else self.state.peers[<uint32_t>writer].identity
        m.rights = rights
        return key

    cdef uint32_t rights_of(self, uint64_t key):
        return self.state.memories[place_of(key)].rights

    cdef uint64_t begin_of(self, uint64_t key) except? 0xFFFFFFFFFFFFFFFF:
        """Where the region begins in its memory. KeyError."""
        cdef Mapping memory = self.memories[key].obj
        return <uint64_t>(self.state.memories[place_of(key)].base - memory.base)

    def deregister(self, uint64_t key):
        """Ends a key: what has not begun fails from here on. KeyError if it isn't one."""
        cdef memory_t *m = &self.state.memories[place_of(key) % KEYS_MAX]
        view = self.memories.pop(key)
        m.rights = 0
        m.writer = 0
        for part in self.parts:
            part.remove_memory(key)
        self.ending[view.obj] = view
        if m.version < 0xFFFFFFFF:
            self.free_keys.append(place_of(key))

    def memory_of(self, uint64_t key):
        """The memory that is registered under this key, or None."""
        view = self.memories.get(key)
        return None if view is None else view.obj

    def idle(self, Mapping memory not None):
        """No request that has begun reads or fills this memory any more, and no key names it."""
        if any(view.obj is memory for view in self.memories.values()):
            return False
        if any(part.busy(memory) for part in self.parts):
            return False
        self.ending.pop(memory, None)
        return True

    def grant(self, uint64_t key, peer):
        """What `peer` needs to reach this region: bytes, to be told it in confidence. KeyError, ConnectionError;
        ValueError for a part of a memory where the peer is on this host, and maps all of it or nothing."""
        cdef memory_t *m = &self.state.memories[place_of(key) % KEYS_MAX]
        part = self.part(peer)
        if part.name == "shm" and m.size != self.memories[key].obj.size:
            raise ValueError("a peer of this host can't be granted a part of a memory")
        rights = m.rights
        if m.writer != self.state.peers[<uint32_t>peer].identity:
            rights &= ~<uint32_t>RIGHT_WRITE
        rights = rights_by(part, rights)
        return GRANT.pack(key, m.size, rights, *part.remote(key))

    def whole_grant(self, uint64_t key):
        """The grant with all rights, also the one writer's: for who tells each peer its own. KeyError; ValueError for a
        part of a memory."""
        cdef memory_t *m = &self.state.memories[place_of(key) % KEYS_MAX]
        if m.size != self.memories[key].obj.size:
            raise ValueError("peers of this host can't be granted a part of a memory")
        remote = (0, 0)
        for part in self.parts:
            if (found := part.remote(key)) != (0, 0):
                remote = found
        return GRANT.pack(key, m.size, m.rights, *remote)

    def know(self, Mapping memory not None):
        """Lists that are posted from C may use this memory of this node, until it was let go as often. ValueError where
        a part knows as many as it can."""
        for part in self.parts:
            part.know(memory)
        self.known[memory] = self.known.get(memory, 0) + 1

    def let_go(self, Mapping memory not None):
        """No list uses this memory any more, nor is one on the way that does. KeyError if it wasn't known."""
        self.known[memory] -= 1
        if self.known[memory] == 0:
            del self.known[memory]
            for part in self.parts:
                part.let_go(memory)

    # ---- memory of others ----

    def reach(self, peer, grant, Mapping memory=None):
        """Makes a region of a peer reachable; returns its number here. `memory`: it, mapped, where the way is `shm`.

        ValueError where the grant or the mapping makes no sense, or REACHED_MAX regions are reached already.
        """
        cdef reached_t *reached
        if len(grant) != GRANT.size:
            raise ValueError(f"a grant has {GRANT.size} bytes, not {len(grant)}")
        key, size, rights, remote_key, remote = GRANT.unpack(grant)
        if not rights & RIGHT_READ or rights & ~<uint32_t>(RIGHT_READ | RIGHT_WRITE | RIGHT_ATOMIC) or (
                rights & RIGHT_WRITE and rights & RIGHT_ATOMIC):
            raise ValueError(f"no grant gives rights {rights}")
        part = self.part(peer)
        if part.name == "shm":
            if memory is None or memory.size < size or memory.base == NULL:
                raise ValueError(f"a region of this host must be mapped, all {size} bytes of it")
            if rights != RIGHT_READ and not memory.writable:
                raise ValueError("a region that this node may change must be mapped for writing")
        if not self.free_reached:
            raise ValueError(f"{REACHED_MAX} reached regions are the limit")
        place = self.free_reached.pop()
        reached = &self.state.reached[<uint32_t>place]
        reached.key = key
        reached.size = size
        reached.peer = peer
        reached.rights = rights_by(part, rights)
        reached.remote_key = remote_key
        reached.remote = remote
        reached.base = NULL if memory is None else memory.base
        number = <uint64_t>reached.uses << 32 | <uint64_t>place
        self.reached[number] = None if memory is None else memory.view()
        return number

    def forget(self, number):
        """The region is reached no more, by this number; what is on the way goes on. KeyError if it wasn't.

        Its place is used again when nothing for it is on the way.
        """
        cdef reached_t *reached = &self.state.reached[<uint64_t>number & 0xFFFFFFFF]
        view = self.reached.pop(number)
        reached.rights = 0
        reached.uses += 1
        behind = self.state.peers[reached.peer].posted
        self.flying[reached.peer].append((behind, (view,), <uint64_t>number & 0xFFFFFFFF))
        self.land(reached.peer)

    cdef int land(self, uint32_t peer) except -1:
        """Lets go of what requests needed that have completed."""
        cdef peer_t *p = &self.state.peers[peer]
        flying = self.flying[peer]
        while flying and flying[0][0] <= p.done:
            _, _, place = flying.popleft()
            if place >= 0:
                self.free_reached.append(place)
        return 0

    # ---- requests and messages ----

    def post(self, Asker asker not None, RequestList requests not None):
        """Posts a list, whole. BlockingIOError where there is no room for it: drive, take completions, try again;
        ConnectionError if its peer is gone; ValueError, with the request's index, where one is wrong."""
        cdef uint32_t bad = 0, peer
        cdef int status
        for view in requests.memories:
            for part in self.parts:
                part.know(view.obj)
        status = post(self.state, &asker.state, requests.requests, requests.n, &bad)
        if status == -errno.EAGAIN:
            raise BlockingIOError(errno.EAGAIN, f"at most {FLIGHTS_MAX} requests and {BYTES_ON_THE_WAY >> 20} MiB are"
                                                f" on the way to a peer, and {asker.state.capacity} completions wait to"
                                                " be taken")
        if status == -errno.EPIPE:
            raise ConnectionError("the connection to that peer is over")
        if status < 0:
            raise ValueError(f"request {bad}: {WHY[-status]}")
        peer = self.state.reached[requests.requests[0].region & 0xFFFFFFFF].peer
        self.flying[peer].append((self.state.peers[peer].posted, (asker, *requests.memories), -1))
        self.land(peer)

    def on_the_way(self, peer):
        """(requests that were posted to a peer so far, those that are done). ConnectionError if it isn't connected."""
        self.part(peer)
        return self.state.peers[<uint32_t>peer].posted, self.state.peers[<uint32_t>peer].done

    def abandon(self, Asker asker not None):
        """Nobody takes the completions of `asker` any more; its requests on the way go on."""
        abandon(self.state, &asker.state)

    def send(self, peer, data):
        """A message. BlockingIOError while MESSAGES_WAITING bytes were not received, ValueError beyond MESSAGE_SIZE,
        ConnectionError if the peer is gone."""
        cdef Py_buffer buffer
        cdef int status
        part = self.part(peer)
        if self.state.peers[<uint32_t>peer].cut:
            raise ConnectionError("the connection to that peer is over")
        PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
        try:
            if buffer.len > MESSAGE_SIZE_MAX:
                raise ValueError(f"a message of {buffer.len} bytes: {MESSAGE_SIZE_MAX} at most")
            status = part.table.send(part.table.self, peer, <char *>buffer.buf, <uint32_t>buffer.len)
        finally:
            PyBuffer_Release(&buffer)
        if status == -errno.EAGAIN:
            raise BlockingIOError(errno.EAGAIN, f"{MESSAGES_WAITING_MAX} bytes of messages wait for that peer")
        if status < 0:
            raise ConnectionError("the connection to that peer is over")

    def receive(self):
        """(peer, bytes) of the next message, or None; of each peer in turns."""
        cdef uint32_t i, peer
        cdef int size
        cdef peer_t *p
        for i in range(<uint32_t>PEERS_MAX):
            peer = (self.state.receive_next + i) % PEERS_MAX
            p = &self.state.peers[peer]
            if p.part == NULL or p.cut:
                continue
            size = p.part.waiting(p.part.self, peer)
            if size < 0:
                continue
            self.state.receive_next = peer + 1
            data = PyBytes_FromStringAndSize(NULL, size)
            p.part.receive(p.part.self, peer, PyBytes_AS_STRING(data), size)
            return peer, data
        return None

    def progress(self):
        """Takes what has come and sends what waits; returns how much that was."""
        cdef Part part
        cdef int total = 0
        for part in self.parts:
            if part.table.progress != NULL:
                total += part.table.progress(part.table.self)
        return total

    def wait(self, double timeout_s):
        """Blocks until there is something to drive, or `timeout_s` seconds; True if there may be."""
        poll = select.poll()
        for fd in self.wait_fds:
            poll.register(fd, select.POLLIN)
        try:
            if self.fall_asleep():
                return True
            rung = bool(poll.poll(timeout_s * 1000))
            self.progress()
            return rung
        finally:
            self.wake_up()

    @property
    def wait_fds(self):
        """Of all parts: readable, between fall_asleep() and wake_up(), when there is something to drive."""
        return [part.wait_fd for part in self.parts if part.wait_fd >= 0]

    def fall_asleep(self):
        """Before a wait for `wait_fds`, with a last look; True if that found something. wake_up() must follow."""
        cdef Part part
        for part in self.parts:
            if part.table.sleep != NULL:
                part.table.sleep(part.table.self)
        return self.progress() > 0 or self.has_message()

    def wake_up(self):
        """Ends what fall_asleep() began."""
        cdef Part part
        for part in self.parts:
            if part.table.wake != NULL:
                part.table.wake(part.table.self)

    cdef bint has_message(self):
        cdef uint32_t i
        cdef peer_t *p
        for i in range(<uint32_t>PEERS_MAX):
            p = &self.state.peers[i]
            if p.part != NULL and not p.cut and p.part.waiting(p.part.self, i) >= 0:
                return True
        return False

    def close(self):
        """Ends all connections. Idempotent."""
        for i in range(PEERS_MAX):
            if self.state.peers[<uint32_t>i].part != NULL:
                self.forget_peer(i)
        for part in self.parts:
            part.close()
        self.parts = []          # each refers to this, and should go with its device when nobody needs it any more

    def __dealloc__(self):
        cdef uint32_t i
        if self.state != NULL:
            for i in range(<uint32_t>PEERS_MAX):
                free(self.state.peers[i].flights)
            free(self.state)


cdef inline uint32_t rights_by(Part part, uint32_t rights):
    """What is left of rights by this way."""
    return rights & ~<uint32_t>RIGHT_ATOMIC if part.table.capabilities & WITHOUT_ATOMICS else rights


def with_atomics(parts):
    """Those of these parts that are used for atomics."""
    return [part for part in parts if not (<Part>part).table.capabilities & WITHOUT_ATOMICS]


def all_with_owner(parts):
    """Atomics of all these parts are atomic against those of the owner's processor."""
    return all([(<Part>one).table.capabilities & ATOMIC_WITH_OWNER for one in with_atomics(parts)])


def atomic_together(parts):
    """Atomics of these parts are atomic against each other: there is one, or the owner's processor does them all."""
    return len(with_atomics(parts)) <= 1 or all_with_owner(parts)
