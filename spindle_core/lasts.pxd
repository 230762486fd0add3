"""The last messages of each key of a topic: the state of that table. See lasts.pxi."""
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from spindle_core.large cimport larges_t


# What a message does to keys, by its tag; the layer above says which tag does what (DeliveryLog, `effects`).
cdef enum effect:
    EFFECT_SAMPLE = 1            # says something of its key: one of those that are kept
    EFFECT_LEAVES = 2            # its writer has no more to do with the key
    EFFECT_ENDS = 4              # the key has ended
    EFFECT_OF_WRITER = 8         # concerns all keys of its writer; alone, says something of the writer
    EFFECT_OF_NODE = 16          # concerns all keys of all writers of its sender's host; only without a writer
    EFFECT_ALONE = 32            # with EFFECT_SAMPLE: it is of no key that others are of, and no such key is counted
    EFFECT_WORD = 64             # says what time it is; only without a writer. DeliveryLog knows which tag that is
    EFFECT_CARRIED = 128         # its writer, the carrier, says it for another one of its host: author_of_record()
    EFFECT_BOUND = 16            # with EFFECT_CARRIED: when the carrier ends, that ends its author's keys, too


# What a message says of its writer's rank, by its tag, in a topic whose table knows who may write a key. Smaller
# numbers: of each key only one writer counts, and the rank is a signed number of 4 bytes in little endian, which begins
# so many bytes before the end; with 0 it isn't said, and is 0. No tag is EFFECT_CARRIED there.
cdef enum:
    RANK_PLACE_MAX = 16          # of these; all that a large_entry has of the end of a sample
    RANK_COUNTS = 251            # all writers count
    RANK_COUNTS_RANKED = 252     # the same, of a message in which there is a rank
    RANK_YIELDS = 253            # its writer gives up the key until it says something of it again
    RANK_PRESENT = 254           # all that counts is that its writer is there: what a table has of others
    RANK_PRESENT_RANKED = 255    # the same, of a message in which there was a rank


cdef enum:
    NAMED = 0                    # keys that are counted
    ALONE = 1                    # those of samples that are of none
    KINDS = 2


# Places in pools: 0 is none.

# A message that is kept: a sample, or an end that matters to samples in the table.
cdef struct last_t:
    uint64_t key, sequence, view_id, source_ns, reception_ns
    uint32_t sender, relay, size
    uint16_t writer_id
    uint8_t tag
    uint8_t large                # the payload is a large_entry
    uint64_t cost                # bytes that it takes, its own beside it included
    uint32_t earlier, later      # in the order, of all that is kept
    uint32_t older, newer        # samples of the same key
    uint32_t of_writer_before, of_writer_after   # samples of the same writer, the last first
    uint32_t instance, writer    # of a sample; of an end 0
    uint32_t left                # of a sample: with this end its writer has left the key; 0: it hasn't
    uint32_t about               # of what is no sample: how many samples' `left`, keys' `ended`, writers' `word` it is
    uint32_t block               # first block of the payload
    uint32_t loose_before, loose_after   # see lasts_t
    uint8_t loose                # it is among these
    bint present                 # a sample without a say: its writer is there, no more; `older`, `newer`: of the others
    int32_t rank                 # of the writer of a sample, where only one counts
    uint32_t yields              # of a sample: by this end the key is its writer's no more; 0: it hasn't come


# A key, while samples of it are kept.
cdef struct instance_t:
    uint64_t key
    uint32_t oldest, newest      # samples
    uint32_t count               # of them
    uint32_t unleft              # those whose writer has not left the key, and the others
    uint32_t others              # samples that are `present`, one of each writer
    uint32_t ended               # the end of the key, if nothing was said of it since; 0: none
    uint32_t chain               # in its bucket
    uint32_t before, after       # in the order of their last samples, of those of its kind
    uint32_t kind                # of its last sample: NAMED or ALONE
    bint over                    # it has ended, and everybody of whom samples are kept has left it
    uint32_t over_before, over_after  # in the order in which they came to be over, of those of its kind
    uint64_t over_ns             # since when, UTC: ascending in that order. While it waits: as the message said


# A writer, while samples of it are kept.
cdef struct author_t:
    uint64_t identity            # see author_of_record()
    uint32_t first               # of its samples
    uint32_t word                # what was said of it last, if it has written nothing since and left nothing; 0: none
    uint32_t chain               # in its bucket
    uint32_t before, after       # all of them


# Keys of one kind, in some order.
cdef struct line_t:
    uint32_t first, last
    uint32_t count


cdef struct pool_t:
    uint32_t fresh               # places that were never used begin here
    uint32_t free                # chain of those that were


cdef struct lasts_t:
    uint8_t effects[256]         # by tag
    bint may_carry               # some tag is EFFECT_CARRIED
    bint ranked                  # it knows who may write a key: lasts_ranked.pxi
    bint shared                  # ... and all of them count; else only one: may_say()
    uint8_t ranks[256]           # where it is ranked: by tag, see RANK_...
    uint8_t present_tags[2]      # with which others are given: RANK_PRESENT, RANK_PRESENT_RANKED
    bint by_source               # the last of a key is what was written last, as its source says: is_older()
    uint64_t depth               # samples kept of each key; 0: no limit
    uint64_t samples_max         # of all keys together; 0: no limit
    uint64_t keys_max            # NAMED ones; 0: no limit
    uint64_t cleanup_ns          # so long a key is kept that is over; CLEANUP_NEVER and more: for ever
    uint64_t bytes_max, bytes
    uint64_t given_up            # samples that found no room any more
    uint64_t given_up_keys
    uint64_t limited             # samples that went because of samples_max or keys_max
    uint64_t version             # grows with each change
    uint64_t next_view, next_sequence    # place in the order behind the last message that was looked at
    uint64_t since_view, since_sequence  # messages before that place are in already
    bint restoring               # what comes is another table
    uint64_t said_ns             # the time that the order has said, UTC
    uint64_t due_ns              # when a key is to go that is over, UTC; 0: none. Read by the control thread
    uint64_t wait                # which wait for a word it is that some key waits for, from 1; 0: none does. As due_ns
    uint64_t waits               # of these so far
    bint sooner                  # a word is wanted that wasn't, or earlier: the control thread is to be told
    uint32_t samples             # that are kept
    larges_t *larges             # of the node; NULL: a table that no node has
    uint64_t secret              # no program can aim at one bucket
    uint32_t mask                # of the buckets
    last_t *lasts
    pool_t last_pool
    char *blocks
    uint32_t *block_chain
    pool_t block_pool
    instance_t *instances
    pool_t instance_pool
    author_t *authors
    pool_t author_pool
    uint32_t *instance_buckets
    uint32_t *author_buckets
    uint32_t first, last         # in the order
    line_t idle[KINDS]           # instances, by their last samples
    line_t over[KINDS]           # instances that are over, by since when
    uint32_t waiting[KINDS]      # the first of these behind whose end no time was said; 0: none
    uint32_t authors_first
    uint32_t loose_first, loose_last     # in the order, the first a sample: those that are ALONE, and ends behind them
    uint32_t kept                # messages
