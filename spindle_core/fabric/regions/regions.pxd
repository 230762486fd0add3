"""The promise of regions: one-sided access to memory of other nodes that outlives views, and messages.

A region is memory that its owner has registered under a key. A key names one registration and never another one. Who
shall use a region is told its key, and whatever else its way there needs, by its owner's grant; from then on it reaches
the region under a number of its own, until it forgets it or the key ends.

- One rule carries all: a plain write goes only into memory of which a grant names its writer the only one; every word
  that several change is changed by compare-and-swap or fetch-and-add. Two connections to one node are one writer. So a
  region is open to reads, and either to the writes of one peer or to the atomics of all, never to both.
- Requests are handed over as lists, at most LIST_MAX for one peer. A list is posted whole or not at all: each request
  is checked first (number, right, range, alignment, room), so that no mistake reaches what users share.
- The requests to one peer happen in the order posted, also across lists: a read behind a compare-and-swap sees what
  that one left, and one doorbell carries both. Nothing is promised between peers.
- The last request of a list is signalled, and any other that says so: each of these completes once, in the order
  posted, in the queue that was given with the list, with its cookie. What is not signalled is done when a later one
  completes.
- A request that fails at the owner (its key has ended, say) completes with the reason, signalled or not, and the rest
  of its list does not happen: what was signalled of that completes as `after`. Other lists go on.
- A connection that ends completes all that was posted to that peer as `cut`: each of these may have happened, or may
  happen yet. What is posted later is refused.
- Within one request the order of its bytes is open, and a longer one may be seen half done. A write or a read of at
  most REQUEST_INLINE_MAX bytes whose ends lie on 8 bytes tears no aligned word of 8; and such a write carries its bytes
  as they are at the post. Of a longer write the bytes stay as they are until it completes.
- Atomics are 8 bytes, aligned, and atomic against each other. What else they are atomic against is the part's to say
  (ATOMIC_WITH_OWNER): the processor of the owner, if it changes the word atomically, too. Parts of which one says no
  are not atomic against each other: a region that several such reach is not open to atomics, but for parts from which
  atomics are kept (keep_atomics_from): these let peers read it, and who changes its words has another way.
- A region is all of a memory, or a part of it; to a peer of the same host only all of it can be granted.
- A region's key ends when its owner says so. What has not begun at the owner by then fails; whether something that has
  begun still touches the memory, `idle` says.
- Messages of at most MESSAGE_SIZE_MAX bytes go to one peer in order, and each is received once. At most
  MESSAGES_WAITING_MAX bytes wait for who doesn't take them; then -EAGAIN. Between requests and messages there is no
  order.
- cut() ends everything with one peer, at once and for good. Its number can be connected anew, as somebody else.

Parts are the ways to a peer: `shm` on one host, `tcp` and `verbs` between hosts, `sim` in a simulator. A peer belongs
to one; a node may have peers of several (that is `mixed`). Whoever drives an object does everything with it, in turns
with nobody: no function blocks, except wait(), and none takes a lock.
"""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.memory cimport Mapping

cdef enum:
    PEERS_MAX = 256
    KEYS_MAX = 4096              # registrations of one owner at a time
    REACHED_MAX = 4096           # regions of others that one node reaches at a time
    LIST_MAX = 64                # requests
    FLIGHTS_MAX = 1024           # requests on the way to one peer: a power of two
    REQUEST_INLINE_MAX = 256     # bytes
    REQUEST_SIZE_MAX = 1 << 30   # bytes
    BYTES_ON_THE_WAY = 256 << 20      # to one peer; a list of more goes when nothing else is on the way
    MESSAGE_SIZE_MAX = 1 << 20   # bytes
    MESSAGES_WAITING_MAX = 4 << 20    # bytes of messages to one peer that were not received, with heads (boxes.pxd)
    NO_PEER = 0xFFFFFFFF

cdef enum:
    REQUEST_READ = 1
    REQUEST_WRITE = 2
    REQUEST_SWAP = 3             # compare and swap
    REQUEST_ADD = 4              # fetch and add

cdef enum:
    REQUEST_SIGNALLED = 1        # flag

cdef enum:
    RIGHT_READ = 1
    RIGHT_WRITE = 2              # of one peer
    RIGHT_ATOMIC = 4             # of all

# peer_t.failed, whatever its part: what its messages say makes no sense to who takes them.
cdef enum:
    PEER_NONSENSE = 0xFF

# What a part can do.
cdef enum:
    ATOMIC_WITH_OWNER = 1        # atomics are atomic against those of the owner's processor, and of other such parts
    CARRIES_LATER = 2            # carry() may leave requests for later, so their short writes are copied when posted
    WITHOUT_ATOMICS = 4          # it is used for everything but atomics

# How a request completes.
cdef enum:
    REQUEST_DONE = 0
    REQUEST_CUT = 1              # its connection ended: it may have happened, or not, or may yet
    REQUEST_ENDED = 2            # the key had ended: it did not happen
    REQUEST_RANGE = 3            # beyond the region or misaligned, says the owner: it did not happen
    REQUEST_REFUSED = 4          # not granted, says the owner: it did not happen
    REQUEST_AFTER = 5            # one before it in its list failed: it did not happen


cdef struct request_t:
    uint32_t kind
    uint32_t flags
    uint64_t region              # number of a region that is reached
    uint64_t offset              # bytes from its start
    uint64_t length              # bytes; of an atomic 8
    char *local                  # what is written, or room for what is read or found; NULL: what was found isn't kept
    uint64_t first               # expected, or what is added
    uint64_t second              # desired
    uint64_t cookie


cdef struct done_t:
    uint64_t cookie
    uint64_t value               # what an atomic found
    uint32_t peer
    uint32_t status


# Where requests complete: one for each user. Invariant: head - tail + promised <= capacity.
cdef struct asker_t:
    done_t *ring
    uint32_t capacity            # a power of two
    uint32_t promised            # places for what is on the way
    uint64_t head, tail


# A region of this node.
cdef struct memory_t:
    char *base
    uint64_t size                # bytes
    uint32_t version             # of its place among the keys: grows with each use
    uint32_t rights              # of peers; 0: the place is free
    uint64_t writer              # identity of the peers that may write; 0: none


# A region of a peer that this node may use.
cdef struct reached_t:
    uint64_t key
    uint64_t size                # bytes
    uint32_t peer
    uint32_t rights              # 0: the place is free
    uint32_t uses                # of this place: the upper half of its number
    uint32_t remote_key          # verbs
    uint64_t remote              # address there: verbs
    char *base                   # shm: mapped here


# A request on the way.
cdef struct flight_t:
    request_t request
    asker_t *asker               # NULL: it has gone
    const reached_t *reached
    uint32_t left                # requests behind it in its list
    uint32_t promised            # of the last one of a list: places to be given back
    char data[REQUEST_INLINE_MAX]      # of a short write that may have to wait


cdef struct regions_t


# What a way to peers does. `peer` is the number of a peer of it that is connected and not cut.
cdef struct part_t:
    void *self
    uint32_t capabilities
    void (*carry)(void *self, uint32_t peer) noexcept nogil       # takes flights sent..posted, as many as it can
    bint (*knows)(void *self, const char *local, uint64_t length) noexcept nogil   # NULL: any memory of this node
    int (*send)(void *self, uint32_t peer, const char *data, uint32_t length) noexcept nogil
    int (*waiting)(void *self, uint32_t peer) noexcept nogil      # length of the next message of that peer; -1: none
    void (*receive)(void *self, uint32_t peer, char *into, uint32_t length) noexcept nogil     # takes it
    int (*progress)(void *self) noexcept nogil                    # takes what has come, sends what waits; how much
    void (*end)(void *self, uint32_t peer) noexcept nogil         # nothing is exchanged any more
    void (*sleep)(void *self) noexcept nogil     # before the last look, after which wait_fd tells what comes; or NULL
    void (*wake)(void *self) noexcept nogil


# Invariant: done <= sent <= posted <= done + FLIGHTS_MAX.
cdef struct peer_t:
    part_t *part                 # NULL: not connected
    flight_t *flights            # request n is flights[n % FLIGHTS_MAX]
    uint64_t posted, sent, done  # numbers of requests
    uint64_t bytes               # of those that are on the way
    uint32_t cut                 # nothing is exchanged any more
    uint32_t failed              # why the connection is over, in words of its part or PEER_NONSENSE; 0 while it isn't
    uint64_t identity            # who it is: connections to the same one may have the same; never 0


cdef struct regions_t:
    peer_t peers[PEERS_MAX]
    memory_t memories[KEYS_MAX]
    reached_t reached[REACHED_MAX]
    uint32_t receive_next        # peer whose messages are looked at next
    uint64_t strangers           # peers without an identity of their own, so far


cdef inline uint32_t place_of(uint64_t key) noexcept nogil:
    return <uint32_t>key


cdef inline flight_t *flight_of(peer_t *p, uint64_t number) noexcept nogil:
    return &p.flights[number & (FLIGHTS_MAX - 1)]


cdef class Regions


cdef class Part:
    cdef part_t table
    cdef readonly str name
    cdef Regions regions

    cdef uint32_t take_peer(self) except? 0xFFFFFFFF


cdef class Regions:
    cdef regions_t *state
    cdef dict memories           # key: a view of its memory, which keeps it mapped as long as peers may use it
    cdef dict ending             # memory of which keys have ended: a view of it, until idle() finds nothing in it
    cdef dict known              # memory that lists posted from C may use: how many users it has
    cdef readonly dict reached   # number: a view of the memory that is mapped for it, or None
    cdef dict versions           # place of a key: how often it was used
    cdef list free_keys, free_reached
    cdef readonly list parts
    cdef list flying             # by peer: (number behind the last request, what it needs, place to be freed or -1)
    cdef object __weakref__

    cdef Part part(self, peer)
    cdef uint32_t rights_of(self, uint64_t key)
    cdef uint64_t begin_of(self, uint64_t key) except? 0xFFFFFFFFFFFFFFFF
    cdef int land(self, uint32_t peer) except -1
    cdef bint has_message(self)
