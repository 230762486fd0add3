/* Every struct that two processes share, and the arithmetic of their places.
 *
 * Rules: 64-bit counts that never wrap; no 8-byte field across a cache line; what one side writes and what the other
 * side writes are on different lines; zeroed memory means "nothing yet" (all columns are counts, never "last index",
 * so a fresh row needs no initial values and can't be read as progress).
 *
 * A row (one per node and epoch):
 *
 *   0                    row_header: identity, control columns
 *   ROW_ACTIVITY_OFFSET  activity marks: which topics' lines have changed last
 *   ROW_AREAS_OFFSET     proposal area, trim area (guarded bytes, see area_header)
 *   ...                  one subgroup_columns line per subgroup, in the order of the view
 *   ...                  received_by_sender[]: one u64 per sender and subgroup, each subgroup on lines of its own
 *   ...                  slots: per subgroup in which this node is a sender, ring_slots(window) of `stride` bytes
 *
 * All rows of an epoch have the same layout up to the slots, and the same offsets of slots as well (a node that isn't a
 * sender leaves the hole untouched: untouched pages cost no memory).
 */
#ifndef SPINDLE_LAYOUT_H
#define SPINDLE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#define LAYOUT_VERSION 10u
#define CACHE_LINE 64u

#define ROW_MAGIC 0x31574f52444e5053ull      /* "SPNDROW1" */
#define LOG_MAGIC 0x31474f4c444e5053ull      /* "SPNDLOG1" */
#define CURSOR_MAGIC 0x31525543444e5053ull   /* "SPNDCUR1" */
#define INBOX_MAGIC 0x31584e49444e5053ull    /* "SPNDINX1" */
#define BELL_MAGIC 0x314c4542444e5053ull     /* "SPNDBEL1" */

#define NODES_MAX 256u        /* members of a view: 4 words of the suspicion bit set */
#define SUBGROUPS_MAX 256u    /* topic numbers have 8 bits */
#define MESSAGE_SIZE_MAX (64u << 20)
#define WINDOW_MAX 65536u

/* ---- row ------------------------------------------------------------------------------------------------------ */

/* Columns of the membership machine; every one only grows. Names in control.pyx (CONTROL_COLUMNS), same order. */
enum control_column {
    CONTROL_HEARTBEAT = 0,
    CONTROL_PROPOSED,      /* count of proposals in my proposal area (leader: made; follower: copied) */
    CONTROL_ACKED,
    CONTROL_COMMITTED,
    CONTROL_PREPARED,      /* memory of the next epoch is made and exchanged */
    CONTROL_WEDGED,
    CONTROL_TRIMMED,       /* my trim area holds the trim */
    CONTROL_TRIM_ECHOED,
    CONTROL_INSTALLED,
    CONTROL_LEAVING,
    CONTROL_SUSPECTED0,
    CONTROL_SUSPECTED1,
    CONTROL_SUSPECTED2,
    CONTROL_SUSPECTED3,
    CONTROL_COLUMNS_COUNT = 16
};

struct row_header {
    uint64_t magic;            /* ROW_MAGIC, written last */
    uint32_t layout_version;
    uint32_t node_id;
    uint64_t incarnation;
    uint64_t epoch;
    uint64_t row_size;         /* bytes */
    uint64_t layout_hash;      /* of all subgroup geometry: members with another idea of the view don't attach */
    uint64_t control_version;  /* guard: grows after every change of a control column or area */
    uint64_t reserved0;
    uint64_t control[CONTROL_COLUMNS_COUNT];
};
_Static_assert(sizeof(struct row_header) == 3 * CACHE_LINE, "row header is three lines");
_Static_assert(offsetof(struct row_header, control) % CACHE_LINE == 0, "control columns start a line");

/* Bytes with a guard: `version` is odd while the owner writes, even and grown when the bytes are whole. */
struct area_header {
    uint64_t version;
    uint32_t size;
    uint32_t crc;              /* CRC-32 of the bytes: a torn copy on another fabric is told from a whole one */
};
_Static_assert(sizeof(struct area_header) == 16, "area header");

/* Activity marks, for peers that map this row: after each change of a topic's line its owner writes mark n, counted
 * from 1, into word (n - 1) % ACTIVITY_MARKS, as `n << ACTIVITY_PLACE_BITS | place of the topic in the view`. So every
 * word only grows, and says by itself whether it is the next one, an old one, or one that has overtaken its reader. */
#define ROW_ACTIVITY_OFFSET 256u
#define ACTIVITY_MARKS 64u
#define ACTIVITY_PLACE_BITS 8u
_Static_assert(sizeof(struct row_header) <= ROW_ACTIVITY_OFFSET, "marks lie behind the header");
_Static_assert(SUBGROUPS_MAX <= 1u << ACTIVITY_PLACE_BITS, "a mark can say every topic");

#define ROW_AREAS_OFFSET 4096u
_Static_assert(ROW_ACTIVITY_OFFSET + ACTIVITY_MARKS * sizeof(uint64_t) <= ROW_AREAS_OFFSET, "and before the areas");
#define PROPOSAL_AREA_SIZE (256u << 10)
#define TRIM_AREA_SIZE (256u << 10)
#define ROW_SUBGROUPS_OFFSET (ROW_AREAS_OFFSET + PROPOSAL_AREA_SIZE + TRIM_AREA_SIZE)

/* What one node says about one subgroup: one line, in two pushes. What it publishes goes behind its slots; what it
 * acknowledges or asks for guards nothing, and may go ahead of whatever waits. Pairs: see the predicates. */
struct subgroup_columns {
    uint64_t published;        /* messages and nulls that this sender has published; guards its slots */
    uint64_t silent_from;      /* declared silence: my indices [silent_from, silent_until) are nulls sent in advance */
    uint64_t silent_until;
    uint64_t received;         /* received number, as a count of sequence numbers */
    uint64_t delivered;        /* delivered number, as a count */
    uint64_t persisted;        /* 0: earlier views' messages aren't on disk yet; else 1 + persisted number (a count) */
    uint64_t delivered_wanted; /* "ring me when your delivered number reaches this": a sender waits for a slot */
    uint64_t larges;           /* large samples that this sender has published, or is about to: of each a slot holds but
                                  the entry. Pushed before these slots, so who sees them knows that it has to look */
};
_Static_assert(sizeof(struct subgroup_columns) == CACHE_LINE, "one line per subgroup");
#define COLUMNS_PUBLISHED_SIZE offsetof(struct subgroup_columns, received)
#define COLUMNS_ACKNOWLEDGED_SIZE (offsetof(struct subgroup_columns, larges) - COLUMNS_PUBLISHED_SIZE)
#define COLUMNS_LARGES_OFFSET offsetof(struct subgroup_columns, larges)

enum slot_kind {
    SLOT_DATA = 1,
    SLOT_NULL = 2,             /* stands for `run` nulls; nothing else in it is meaningful */
    SLOT_RELAYED = 3,          /* data of a writer on a host without a node, whose number is `run` */
    SLOT_LARGE = 4             /* with SLOT_DATA or SLOT_RELAYED: the payload is a large_entry, the sample lies beside */
};

/* What stands in a slot, an inbox and a log for a large sample: one whose bytes lie in memory of their own, in one memfd
 * that is sealed, so that they never change again. */
struct large_entry {
    uint64_t id;               /* not 0; the same at all nodes. In an inbox: the number by which its writer handed it over */
    uint64_t size;             /* bytes */
    char first[8], last[16];   /* of its bytes: what a message says of time and rank stands there (timing.pxi, lasts.pxi) */
};
_Static_assert(sizeof(struct large_entry) == 40, "large entry: the least size_max of a topic with large samples");
#define LARGE_SAMPLE_MAX (4ull << 30)

struct slot_header {
    uint64_t index;            /* stamp: the sender's index of this message; tells a stale slot from a fresh one */
    uint32_t size;             /* payload bytes */
    uint8_t kind;              /* enum slot_kind */
    uint8_t tag;               /* what the message is to the layer above, which gave it; 0: an ordinary one */
    uint16_t writer_id;        /* writer on the sending node */
    uint64_t run;              /* nulls: how many indices this slot stands for; relayed: see log_record; inbox: the key */
    uint64_t source_ns;        /* source timestamp, UTC ns */
};
_Static_assert(sizeof(struct slot_header) == 32, "slot header");

/* The header of a topic whose messages have keys. Others' slots stay as small as they were. */
struct keyed_slot_header {
    struct slot_header slot;
    uint64_t key;              /* of what the message is about; opaque; 0: of nothing in particular */
};
_Static_assert(offsetof(struct keyed_slot_header, key) == 32, "the key follows the header");
_Static_assert(sizeof(struct keyed_slot_header) == 40, "keyed slot header");

/* Place of the lowest bit that is set, of a word that has one. */
static inline uint32_t first_bit(uint64_t bits) { return (uint32_t)__builtin_ctzll(bits); }
/* Place of the highest bit that is set, of a word that has one. */
static inline uint32_t last_bit(uint64_t bits) { return 63u - (uint32_t)__builtin_clzll(bits); }
static inline uint64_t align_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }
/* A ring has the next power of two of slots, so that finding one takes no division; how many may be claimed at once is
 * its window all the same. */
static inline uint64_t ring_slots(uint64_t window)
{
    return window < 2 ? 1 : UINT64_C(1) << (64 - __builtin_clzll(window - 1));
}
static inline uint64_t slot_stride(uint64_t size_max) { return align_up(sizeof(struct slot_header) + size_max, CACHE_LINE); }

/* ---- doorbell -------------------------------------------------------------------------------------------------- */

/* One page per node, mapped read-only by peers and applications. Whoever has published something looks whether the
 * node's predicate thread sleeps. Only then, once a sleep, it rings the descriptor given with the page (bell.pxd). */
struct bell_page {
    uint64_t magic;
    uint32_t node_id;
    uint32_t reserved0;
    uint64_t incarnation;
    uint64_t stopped;          /* 1 after the predicate thread ended for good */
    uint64_t sleeps;           /* odd while the predicate thread is, or is about to be, blocked; grows at both ends */
    uint64_t called;           /* the last of these sleeps from which a thread of the node itself has rung */
};
_Static_assert(offsetof(struct bell_page, sleeps) % 8 == 0, "aligned");

/* ---- inbox: from an application's writer to its node ------------------------------------------------------------- */

/* Written by the application only; the node trusts nothing in it and reads every field once. */
struct inbox_header {
    uint64_t magic;
    uint64_t committed;        /* messages that the application has committed; guards the slots */
    uint64_t space_waiting;    /* grows each time the application is about to sleep for progress */
    uint64_t signs;            /* of life, beside what is committed: grows with each */
    uint64_t reserved0[4];
};
_Static_assert(sizeof(struct inbox_header) == CACHE_LINE, "one line");
#define INBOX_SLOTS_OFFSET 4096u

/* Written by the node only. */
struct inbox_progress {
    uint64_t magic;
    uint64_t consumed;         /* messages taken over into the node's ring: these slots are free again */
    uint64_t acknowledged;     /* messages that every member has delivered */
    uint64_t persisted;        /* messages that every member of a logged topic has on disk */
    uint64_t size_max;
    uint64_t slots;
    uint64_t refused;          /* messages dropped because their header was nonsense (a broken application) */
    uint64_t writer_id;
};
_Static_assert(sizeof(struct inbox_progress) == CACHE_LINE, "one line");

/* ---- delivery log ------------------------------------------------------------------------------------------------ */

/* A position is a logical byte count that never wraps; the offset is where in the ring it lies. They differ by jumps:
 * a record of kind LOG_JUMP says that the log goes on at offset 0 because the ring ends. When the log goes back to its
 * hot part there is no such record: nobody has anything left to read then, so hot_position alone is enough. */
enum log_kind {
    LOG_DATA = 1,
    LOG_JUMP = 2,
    LOG_LARGE = 3              /* the payload is a large_entry */
};

struct log_record {
    uint64_t position;         /* of this record: tells an overtaken reader that it is lost */
    uint32_t size;             /* payload bytes */
    uint8_t kind;              /* enum log_kind */
    uint8_t tag;               /* as in slot_header */
    uint16_t writer_id;
    uint64_t key;              /* as in keyed_slot_header; 0 in topics without keys */
    uint64_t sequence;         /* sequence number in its epoch */
    uint64_t source_ns;
    uint64_t reception_ns;
    uint32_t sender;           /* node id */
    uint32_t relay;            /* with writer_id: which writer on a host without a node this is; 0: of a node's host */
    uint64_t view_id;
};
_Static_assert(sizeof(struct log_record) == CACHE_LINE, "record header is one line");
_Static_assert(offsetof(struct log_record, key) == 16, "the key of a record");

/* Where the log stands; written by the node only. `oldest_*` change together under `version` (odd while changing). */
struct log_header {
    uint64_t magic;
    uint64_t capacity;         /* bytes of the ring that follows at LOG_RING_OFFSET */
    uint64_t hot;              /* bytes of its hot part */
    uint64_t keeps_history;
    /* Of a copy of the last messages of each key, which a late reader reads first: the place in the order behind all that
     * it stands for, and the messages that found no room in it any more. */
    uint64_t behind_view, behind_sequence;
    uint64_t given_up;
    uint64_t said_ns;          /* the latest time that the topic's order has said, UTC: timing.pxi */

    uint64_t tail;             /* position behind the last whole record; guards the records */
    uint64_t count;            /* messages appended */
    uint64_t stopped;          /* 1 when the node will never append again */
    uint64_t blocked;          /* 1 while delivery waits for a keep-all reader: one that advances rings the node */
    uint64_t hot_position;     /* where the log last went back to its hot part: this position lies at offset 0 */
    uint64_t reserved1[3];

    uint64_t version;          /* seqlock over the oldest record that can still be read */
    uint64_t oldest_position;
    uint64_t oldest_offset;
    uint64_t oldest_index;
    uint64_t tail_offset;
    uint64_t reserved2[3];
};
_Static_assert(offsetof(struct log_header, tail) % CACHE_LINE == 0, "tail starts a line");
_Static_assert(offsetof(struct log_header, version) % CACHE_LINE == 0, "oldest starts a line");
#define LOG_RING_OFFSET 4096u

static inline uint64_t record_stride(uint64_t size) { return align_up(sizeof(struct log_record) + size, CACHE_LINE); }

/* Written by the application only; the node reads every field once and trusts none. */
struct cursor_page {
    uint64_t magic;
    uint64_t position;         /* everything before it has been read */
    uint64_t index;            /* messages read, for status only */
    uint64_t armed;            /* grows each time the reader is about to sleep: ring me once for this */
    uint64_t attended;         /* not 0: the reader looks by itself, don't ring */
    uint64_t table_read;       /* not 0: of a copy of a table of keys that it was given, it needs nothing any more */
    uint64_t reserved0[2];
};
_Static_assert(sizeof(struct cursor_page) == CACHE_LINE, "one line");

/* What the node tells the reader at its start; written by the node before the descriptor is handed out. */
struct cursor_start {
    uint64_t position;
    uint64_t offset;
    uint64_t index;
    uint64_t keep_all;
};
#define CURSOR_START_OFFSET 64u

/* ---- regions: messages between nodes of one host ------------------------------------------------------------------- */

/* Written by the node that sends; the ring of bytes follows at POST_RING_OFFSET. */
#define POST_RING_OFFSET 4096u
struct post_page {
    uint64_t sent;             /* bytes put into the ring */
    uint64_t reserved0[7];
    uint64_t taken;            /* bytes taken of the peer's ring */
    uint64_t reserved1[7];
};
_Static_assert(sizeof(struct post_page) == 2 * CACHE_LINE, "two lines");

/* What a node says of each key under which it has registered memory, for other nodes of its host: a page of these. */
struct key_entry {
    uint32_t version;          /* of the key that is open here; 0: none. Written last, and first when it ends */
    uint32_t fd;               /* of its memory in the owner's process; 2^32 - 1: none */
    uint64_t inode;            /* of the file that this is */
};
_Static_assert(sizeof(struct key_entry) == 16, "four in a line");

/* ---- links: between a program and the pool of its host ------------------------------------------------------------- */

#define LINK_MAGIC 0x314b4e4c444e5053ull     /* "SPNDLNK1" */
#define LINK_REQUESTS_MAX 256u
#define LINK_DONES_MAX 512u
#define LINK_BOX_SIZE (1u << 18)             /* bytes of messages that were not taken */

/* One line. The program writes it; the pool reads it once, and trusts nothing in it. */
struct link_request {
    uint8_t kind;
    uint8_t flags;
    uint16_t left;             /* requests behind it in its list */
    uint32_t length;           /* bytes */
    uint32_t region;           /* handle, from the pool */
    uint32_t buffer;           /* handle of the program's own memory */
    uint64_t offset;           /* bytes from the region's start; of a message to a port: the port */
    uint64_t buffer_offset;    /* bytes from the buffer's start */
    uint64_t first;            /* expected, or what is added */
    uint64_t second;           /* desired */
    uint64_t cookie;
    uint64_t reserved;
};
_Static_assert(sizeof(struct link_request) == CACHE_LINE, "one line");

/* Written by the program alone. */
struct link_user_page {
    uint64_t magic;
    uint64_t submitted;        /* requests; guards them */
    uint64_t reserved0[6];
    uint64_t dones_taken;
    uint64_t messages_taken;   /* bytes of the box */
    uint64_t reserved1[6];
    struct bell_page bell;     /* of the thread that uses this end; only `sleeps` counts (bell.pxd) */
    uint64_t reserved2[2];
    struct link_request requests[LINK_REQUESTS_MAX];
};
_Static_assert(offsetof(struct link_user_page, requests) == 3 * CACHE_LINE, "three lines");

struct link_done {
    uint64_t cookie;
    uint64_t value;            /* what an atomic found; bytes of a message that was received into a buffer */
    uint32_t status;
    uint32_t reserved;
};
_Static_assert(sizeof(struct link_done) == 24, "no padding");

/* Written by the pool alone; the program maps it for reading. */
struct link_pool_page {
    uint64_t magic;
    uint64_t taken;            /* requests */
    uint64_t dones;            /* guards them */
    uint64_t messages;         /* bytes put into the box; guards them */
    uint64_t broken;           /* not 0: why this link is over */
    uint64_t duplexes;         /* that were made for it, which is bound to a port; the program asks its node for them */
    uint64_t reserved0[2];
    struct link_done ring[LINK_DONES_MAX];
    char box[LINK_BOX_SIZE];   /* each message with its length and who sent it before it */
};
_Static_assert(offsetof(struct link_pool_page, ring) == CACHE_LINE, "one line");

/* ---- duplexes: messages both ways between two programs of one host ---------------------------------------------- */

#define DUPLEX_MAGIC 0x31585044444e5053ull   /* "SPNDDPX1" */
#define DUPLEX_RING_SIZE (1u << 16)          /* bytes of messages that were not taken */

/* Written by one of the two programs alone, which trusts nothing of it, and read by the other one, which neither does. */
struct duplex_side {
    uint64_t put;              /* bytes put into the ring; guards them */
    uint64_t closed;           /* not 0: it takes nothing any more */
    uint64_t wants_room;       /* not 0: it sleeps until the other side has taken something */
    uint64_t reserved0[5];
    uint64_t taken;            /* bytes of the other side's ring */
    uint64_t reserved1[7];
    struct bell_page bell;     /* of the thread that uses this side; only `sleeps` counts (bell.pxd) */
    uint64_t reserved2[2];
    char ring[DUPLEX_RING_SIZE];
};
_Static_assert(offsetof(struct duplex_side, ring) == 3 * CACHE_LINE, "three lines");

struct duplex_page {
    uint64_t magic;
    uint64_t reserved[7];
    struct duplex_side sides[2];               /* of who has asked for it, and of who listens */
};

#endif
