"""The fabric's promise: one-sided writes of a row into the peers' copies of it, and doorbells, for one view.

What outlives a view, and whatever else nodes do with each other's memory, is for regions (regions/regions.pxd).

- A post writes a range of my own row to the same place of a peer's copy of it. FIFO per peer: a later write is never
  visible before an earlier one (but see lanes, and POST_AHEAD). A list of posts is handed over at once (one doorbell of
  the device per peer).
- A row is written only by its owner, so a fabric that maps the owner's row itself (shm) copies nothing: the stores
  are visible before the post. Nothing may depend on a store being invisible: data first, then the count that guards
  it, with release order.
- Only whole posts are in order: within one post the owner may not count on any order. A post of at most
  POST_INLINE_MAX bytes carries its bytes as they are at the post; of a longer one every line may be read when it lands,
  newer than at the post. So a count goes in a short post of its own, behind what it guards, and never counts more.
- Posts with a lane (a number above 0 in the upper half of their flags) belong together: POST_GUARD marks the counts,
  which guard the lane's data (its other posts) and nothing else. The owner changes no data before the peer is done
  with them.
  A fabric in which posts wait may use that: data may join the lane's last data that waits, if they touch; a count may
  take the place of the lane's last count that waits, unless data of the lane wait behind that. So a lane's posts may be
  seen before earlier ones of other lanes, and what waits for a slow peer is bounded by what its lanes hold, however
  often it is posted. Only the thread that drives the predicates posts rows, and only it uses lanes.
- POST_AHEAD, for a count that guards nothing, alone in its lane, always of the same range and at most POST_INLINE_MAX
  bytes long: it may go ahead of all that was posted before it, or arrive behind what is posted after it, as on a
  connection of its own. It keeps order only with posts of its lane. The reason: an acknowledgement that waits behind
  data which nobody waits for holds up the sender that it is for (docs/paper.md, "Past the paper").
- A fabric that copies wakes the peer with every post. To look at the peer's columns and leave a doorbell out is right
  only where both see each other's stores at once.
- cut() ends everything with one peer, at once and for good: neither what is posted to it nor what it posts happens any
  more.
- Where writes need help to arrive (tcp), enter() takes what has come before a pass over the predicates, and leave()
  sends after it what was posted meanwhile. NULL where they need none.
- prepare_wait() announces sleep; after it the caller looks for work once more; wait() blocks until rung; finish_wait().
  A ring between prepare_wait() and wait() is never lost, and costs no system call while nobody sleeps.
Every function is nogil and never blocks, except wait().
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    POST_RING = 1               # wake the peer: it has something to do
    POST_GUARD = 2              # a count of its lane
    POST_AHEAD = 4              # a count that need not wait for other posts
    POST_LANE_SHIFT = 16
    LANE_BEAT = 1               # the heartbeat, which goes ahead
    LANES_FIXED = 2
    POST_INLINE_MAX = 256       # bytes


cdef struct post_t:
    uint32_t peer               # row rank
    uint32_t flags
    uint64_t offset             # bytes from the start of my row
    uint64_t length             # bytes


cdef struct fabric_t:
    void *self
    uint64_t range_cost         # a further post costs as much as so many bytes: gaps up to that are posted as well
    uint64_t push_bytes         # more bytes of slots than that go in pieces, each with a count behind it
    int (*enter)(void *self) noexcept nogil                                         # returns how much has come
    void (*leave)(void *self) noexcept nogil
    int (*post_list)(void *self, const post_t *posts, uint32_t n) noexcept nogil   # returns doorbells rung
    int (*ring)(void *self, uint32_t peer) noexcept nogil                           # returns doorbells rung
    void (*cut)(void *self, uint32_t peer) noexcept nogil
    void (*prepare_wait)(void *self) noexcept nogil
    int (*wait)(void *self, int64_t timeout_ns) noexcept nogil                      # 1 rung, 0 timeout
    void (*finish_wait)(void *self) noexcept nogil


cdef inline uint32_t slots_lane(uint32_t place) noexcept nogil:
    """Of the topic at that place of the view: slots, guarded by the published count."""
    return (LANES_FIXED + 2 * place) << POST_LANE_SHIFT


cdef inline uint32_t counts_lane(uint32_t place) noexcept nogil:
    """Of the same topic: counts of what was received, which guard nothing."""
    return (LANES_FIXED + 2 * place + 1) << POST_LANE_SHIFT


cdef class Fabric:
    cdef fabric_t table
    cdef readonly uint32_t rank
    cdef readonly uint32_t n_peers

    cdef int check_peer(self, peer) except -1
