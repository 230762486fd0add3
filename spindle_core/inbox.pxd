"""Inboxes: a ring of slots per application writer, from which the send predicate takes messages. The node's side."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from spindle_core.doorbell cimport Doorbell
from spindle_core.large cimport LARGES_OF_INBOX, inbox_large_t
from spindle_core.layout cimport inbox_header, inbox_progress
from spindle_core.memory cimport Mapping


cdef enum farewell_state:
    FAREWELL_NONE
    FAREWELL_DUE
    FAREWELL_SENT
    FAREWELL_DELIVERED           # by every member


# The node's side, as the send predicate sees it.
cdef struct inbox_t:
    inbox_header *header         # the application's: nothing in it is trusted
    char *slots
    inbox_progress *progress     # ours
    uint64_t consumed            # our own copy: the application can't change it
    uint64_t until               # once ended: messages to be taken over, all told
    bint ended                   # what the application commits counts no more
    farewell_state farewell      # a message without payload behind these
    uint8_t farewell_tag
    uint8_t aside_tag            # of a message without payload that goes in the writer's name; 0: none
    uint64_t aside_at            # messages that go before it, all told
    uint64_t aside_ns            # its source timestamp
    uint64_t size_max            # bytes
    uint64_t n_slots             # messages that may be committed and not taken over yet
    uint64_t ring                # slots: ring_slots(n_slots)
    uint64_t stride              # bytes
    uint64_t space_rung          # value of header.space_waiting that we last rang for
    uint64_t ack_index           # acknowledged is raised to ack_count once all delivered my messages below this index
    uint64_t ack_count
    uint64_t ack_next_index      # the same for what was consumed since
    uint64_t persist_index
    uint64_t persist_count
    int ring_end                 # our end of the writer's doorbell
    uint16_t writer_id
    uint32_t relay               # as in log_record
    inbox_large_t larges[LARGES_OF_INBOX]   # large samples that the control thread has taken charge of


cdef class Inbox(Doorbell):
    cdef inbox_t state
    cdef readonly Mapping ring
    cdef readonly Mapping progress

    cdef inbox_t *pointer(self) noexcept
