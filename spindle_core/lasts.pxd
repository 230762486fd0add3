"""The last messages of each key of a topic: the state of that table. See lasts.pxi."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


# What a message does to keys, by its tag; the layer above says which tag does what (DeliveryLog, `effects`).
cdef enum effect:
    EFFECT_SAMPLE = 1            # says something of its key: one of those that are kept
    EFFECT_LEAVES = 2            # its writer has no more to do with the key
    EFFECT_ENDS = 4              # the key has ended
    EFFECT_OF_WRITER = 8         # concerns all keys of its writer; alone, says something of the writer
    EFFECT_OF_NODE = 16          # concerns all keys of all writers of its sender's host; only without a writer


# Places in pools: 0 is none.

# A message that is kept: a sample, or an end that matters to samples in the table.
cdef struct last_t:
    uint64_t key, sequence, view_id, source_ns, reception_ns
    uint32_t sender, relay, size
    uint16_t writer_id
    uint8_t tag
    uint32_t earlier, later      # in the order, of all that is kept
    uint32_t older, newer        # samples of the same key
    uint32_t of_writer_before, of_writer_after   # samples of the same writer, in no order
    uint32_t instance, writer    # of a sample; of an end 0
    uint32_t left                # of a sample: with this end its writer has left the key; 0: it hasn't
    uint32_t about               # of what is no sample: how many samples' `left`, keys' `ended`, writers' `word` it is
    uint32_t block               # first block of the payload


# A key, while samples of it are kept.
cdef struct instance_t:
    uint64_t key
    uint32_t oldest, newest      # samples
    uint32_t count               # of them
    uint32_t unleft              # those whose writer has not left the key
    uint32_t ended               # the end of the key, if nothing was said of it since; 0: none
    uint32_t chain               # in its bucket
    uint32_t before, after       # in the order of their last samples


# A writer, while samples of it are kept.
cdef struct author_t:
    uint64_t identity
    uint32_t first               # of its samples
    uint32_t word                # what was said of it last, if it has written nothing since and left nothing; 0: none
    uint32_t chain               # in its bucket
    uint32_t before, after       # all of them


cdef struct pool_t:
    uint32_t fresh               # places that were never used begin here
    uint32_t free                # chain of those that were


cdef struct lasts_t:
    uint8_t effects[256]         # by tag
    uint64_t depth               # samples kept of each key
    uint64_t bytes_max, bytes
    uint64_t given_up            # samples that found no room any more
    uint64_t given_up_keys
    uint64_t version             # grows with each change
    uint64_t next_view, next_sequence    # place in the order behind the last message that was looked at
    uint64_t since_view, since_sequence  # messages before that place are in already
    bint restoring               # what comes is another table
    uint32_t keys                # of which something is kept
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
    uint32_t idle_first, idle_last   # instances, by their last samples
    uint32_t authors_first
    uint32_t kept                # messages
