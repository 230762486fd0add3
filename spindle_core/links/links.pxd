"""Links: virtual queue pairs over a pool of connections that does not grow with their users.

The structure is that of KRCore ("A Microsecond-scale RDMA Control Plane for Elastic Computing", sections 4.2 to 4.6):
what its kernel module is, here is the pool of a host. A link is its virtual queue pair: a user's own pair of queues to
one node, over a physical connection of the pool that other links use as well.

- Opening a link makes no connection: the pool has one to each node. So its cost is a place in a table.
- A user submits lists of requests and takes completions, in memory that it shares with the pool. What it writes there
  is read once and checked: region, range, operation, own memory, room. Of a wrong list nothing happens, and nobody
  else notices: the request that breaks a rule completes as `wrong`, what else is signalled of the list as `after`. So
  does a list with a region in it that has ended, of which the user has known.
- Users take turns: in each round one list of each. Nobody's flood stops another one: what the way has no room for waits
  in its own ring, and a ring that is full is its user's alone.
- Completions reach their owner in the order in which it submitted. Those of a link that was closed reach nobody.
- A region is found by name, through the same ring: the answer is a handle, and in place of the name size and rights.
- A region is reached through a handle, for as long as its lease lasts. After that its requests wait until the lease is
  renewed, or fail as `ended`. An owner that ends a region waits for the longest lease before it gives up its memory: so
  nothing is touched after deregistration and lease.
- Messages go to a port of a node, where one link is bound, or to a link from which one came (many to one). A message
  completes when it was put into the receiver's box, or into memory that the receiver had posted for it. A receiver
  without room lets its senders wait, each in its own ring and in its own order; neither side keeps anything for the
  other one, so a pool's memory does not grow with the links of others. Of one link one note is on the way, with all
  short messages that were submitted meanwhile.
- A message of more than LINK_INLINE_MAX bytes stays where it is until the receiver's pool reads it, one-sidedly,
  straight into the memory that the receiver posted (the paper's zero-copy protocol, section 4.5). Until then its bytes,
  and no others, are open to that pool; to one on the same host, which maps a memory as a whole, all of that memory.
- A user that sleeps is rung once for all that a run has for it (bell.pxd).
- A node may have a second connection for atomics, where the first one's would not be atomic against the processor's
  (RDMA): a list with an atomic in it goes that way, whole. A link that changes from one to the other waits until all
  that it had on the way has completed, so that its order holds.
- A link moves from one connection to another with its order kept (section 4.6): it submits nothing until all that it
  had on the old one has completed.

Time is given, never read; and a pool blocks nowhere.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from spindle_core.fabric.regions.regions cimport asker_t, part_t, regions_t
from spindle_core.layout cimport link_pool_page, link_user_page

cdef enum:
    LINKS_MAX = 4096             # of one pool
    HANDLES_MAX = 64             # regions of one link
    BUFFERS_MAX = 16             # memories of one link
    POSTED_MAX = 64              # memories that wait for long messages: a power of two
    LINK_INLINE_MAX = 16 << 10   # bytes of a message that goes through the box
    NOTE_SIZE_MAX = 64 << 10     # bytes of a note with all its messages
    PORTS_MAX = 65535
    NAME_SIZE_MAX = 64           # bytes of a region's name (directory.py)
    FOUND_SIZE = 16              # bytes that come in place of the name: size and rights of the region
    ERRANDS_MAX = 256            # for whoever drives the pool, at a time: a power of two
    RETRY_SOON = 1               # link_t.retry_ns: a backoff from the next look on
    RETRY_FIRST_NS = 50000
    RETRY_LAST_NS = 10000000

# Kinds of submissions: those of requests (regions.pxd), and
cdef enum:
    LINK_SEND = 5                # a message to the port `offset`, or where that is 0 to the link `first`
    LINK_RECEIVE = 6             # memory for one long message
    LINK_FIND = 7                # opens the region whose name lies in own memory; `first`: it will be changed, too
    LINK_FORGET = 8              # closes the region `region`

# How they complete, beside the ways of requests.
cdef enum:
    LINK_WRONG = 16              # this one, or one of its list, breaks a rule: `value` says which (errno)
    LINK_NOBODY = 17             # nobody is bound there

cdef enum:
    LINK_FREE = 0
    LINK_OPEN = 1
    LINK_MOVING = 2              # takes no submissions until all is done
    LINK_BROKEN = 3              # its connection is over, or its user breaks the rules
    LINK_CLOSING = 4             # its user has gone; some requests are on the way

# Why a link is broken, in its page.
cdef enum:
    BROKEN_CONNECTION = 1
    BROKEN_RULES = 2             # the user's counts make no sense

# What pools tell each other, by messages of their connection.
cdef enum:
    NOTE_SEND = 1                # messages follow, each with its length before it (boxes.pxd)
    NOTE_LONG = 2                # one message, which is to be read: long_t follows
    NOTE_ANSWER = 3

# What the pool can't do by itself, for who drives it (errand_t.kind).
cdef enum:
    ERRAND_NONE = 0              # it was dropped
    ERRAND_LEASE = 1             # of `link`: handle `what` must be renewed, or ended
    ERRAND_SEND = 2              # of `link`: its next submission is a long message
    ERRAND_FETCH = 3             # a long message has come over `peer`: note and long_t in `data`
    ERRAND_MOVED = 4             # `link` is on its new connection
    ERRAND_ASK = 5               # `link` wants to find or forget a region: the pool's user answers


cdef struct note_t:
    uint32_t kind
    uint32_t status              # of an answer
    uint64_t port                # 0: to the link `to`
    uint64_t to
    uint64_t source              # the link that sends
    uint64_t number              # of the note, among those of its link
    uint64_t count               # of an answer: messages that were taken


# Of a NOTE_LONG: where its bytes are.
cdef struct long_t:
    char grant[32]
    uint64_t offset
    uint64_t length


cdef struct errand_t:
    uint32_t kind
    uint32_t peer
    uint64_t link
    uint64_t what
    note_t note
    long_t where


cdef struct handle_t:
    uint64_t region              # number of a region that is reached
    uint64_t by_atomics          # the same by the connection for atomics, where the link has one
    uint64_t lease_ns            # until when
    uint8_t open
    uint8_t ended                # what is asked of it fails


cdef struct buffer_t:
    char *base                   # NULL: none
    uint64_t size                # bytes
    uint8_t writable


cdef struct posted_t:
    char *at
    uint64_t length
    uint64_t cookie


cdef struct link_t:
    uint64_t id                  # its place, and above it how often that was used; never 0
    uint32_t at                  # among those in use
    uint32_t state
    uint32_t peer                # the connection in use; NO_PEER: of no node, it is bound to a port
    uint32_t next_peer           # while it moves
    uint32_t atomics_peer        # the connection for lists with atomics; NO_PEER: `peer`
    uint8_t on_atomics           # the last list went there
    uint64_t port                # 0: none
    uint64_t sends_to            # the only port that it may send to, beside links; 0: any
    asker_t asker
    link_user_page *user
    link_pool_page *pool
    uint64_t taken, told, boxed  # requests, completions, bytes of messages
    uint8_t waits                # for an errand
    handle_t handles[HANDLES_MAX]
    buffer_t buffers[BUFFERS_MAX]
    # The note that is on the way, if any
    uint8_t noted
    uint64_t note_number, note_count
    uint64_t retry_ns            # not before; the receiver had no room
    uint64_t backoff_ns
    # Memory for long messages
    uint64_t posted_head, posted_tail
    uint32_t fetching            # memories besides that one is being read into: their places may be needed again
    posted_t posted[POSTED_MAX]
    # How much it is used, since somebody last looked
    uint64_t requests, bytes
    # The bell of its user
    uint8_t news                 # something that it may sleep for
    int end                      # where it is rung (events.pxd); -1: it never sleeps
    uint64_t rung


cdef struct pool_t:
    regions_t *regions
    part_t *parts[8]
    uint32_t n_parts
    link_t *links[LINKS_MAX]     # by place; NULL: it is free
    link_t *used[LINKS_MAX]      # the same without gaps, in any order: a run costs what is in use
    uint32_t n_used
    uint32_t turn                # whose turn it is, among those
    uint64_t node_of[256]        # id of the node that a connection leads to; 0: none of the pool
    link_t *ports[PORTS_MAX + 1]
    errand_t errands[ERRANDS_MAX]
    uint64_t errands_head, errands_tail
    char *note                   # room for one that is being made
    char *heard                  # and for one that has come
    note_t owed[256]             # by connection: an answer that had no room yet; kind 0: none


cdef inline link_t *link_of(pool_t *s, uint64_t id) noexcept nogil:
    """The link of that id; NULL: it has gone."""
    cdef uint64_t place = id & 0xFFFF
    if place >= LINKS_MAX or s.links[place] == NULL or s.links[place].id != id:
        return NULL
    return s.links[place]
