"""The shared structs of layout.h, for cimport. What the fields mean stands there."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "layout.h" nogil:
    const uint32_t LAYOUT_VERSION
    const uint64_t ROW_MAGIC, LOG_MAGIC, CURSOR_MAGIC, INBOX_MAGIC, BELL_MAGIC
    const uint32_t CACHE_LINE, NODES_MAX, SUBGROUPS_MAX, MESSAGE_SIZE_MAX, WINDOW_MAX
    const uint32_t ROW_AREAS_OFFSET, PROPOSAL_AREA_SIZE, TRIM_AREA_SIZE, ROW_SUBGROUPS_OFFSET
    const uint32_t INBOX_SLOTS_OFFSET, LOG_RING_OFFSET, CURSOR_START_OFFSET
    const uint32_t ROW_ACTIVITY_OFFSET, ACTIVITY_MARKS, ACTIVITY_PLACE_BITS
    const uint64_t COLUMNS_PUBLISHED_SIZE, COLUMNS_ACKNOWLEDGED_SIZE
    const int CONTROL_HEARTBEAT, CONTROL_WEDGED, CONTROL_COLUMNS_COUNT
    const uint64_t COLUMNS_LARGES_OFFSET, LARGE_SAMPLE_MAX
    const int SLOT_DATA, SLOT_NULL, SLOT_RELAYED, SLOT_LARGE
    const int LOG_DATA, LOG_JUMP, LOG_LARGE

    const uint32_t POST_RING_OFFSET
    const uint64_t LINK_MAGIC
    const uint32_t LINK_REQUESTS_MAX, LINK_DONES_MAX, LINK_BOX_SIZE

    cdef struct bell_page:
        uint64_t magic
        uint32_t node_id
        uint64_t incarnation
        uint64_t stopped
        uint64_t sleeps
        uint64_t called

    cdef struct key_entry:
        uint32_t version
        uint32_t fd
        uint64_t inode

    cdef struct post_page:
        uint64_t sent
        uint64_t taken

    cdef struct link_request:
        uint8_t kind
        uint8_t flags
        uint16_t left
        uint32_t length
        uint32_t region
        uint32_t buffer
        uint64_t offset
        uint64_t buffer_offset
        uint64_t first
        uint64_t second
        uint64_t cookie

    cdef struct link_user_page:
        uint64_t magic
        uint64_t submitted
        uint64_t dones_taken
        uint64_t messages_taken
        bell_page bell
        link_request requests[256]

    cdef struct link_done:
        uint64_t cookie
        uint64_t value
        uint32_t status

    cdef struct link_pool_page:
        uint64_t magic
        uint64_t taken
        uint64_t dones
        uint64_t messages
        uint64_t broken
        uint64_t duplexes
        link_done ring[512]
        char box[1 << 18]

    const uint64_t DUPLEX_MAGIC
    const uint64_t DUPLEX_RING_SIZE

    cdef struct duplex_side:
        uint64_t put
        uint64_t closed
        uint64_t wants_room
        uint64_t taken
        bell_page bell
        char ring[1 << 16]

    cdef struct duplex_page:
        uint64_t magic
        duplex_side sides[2]

    cdef struct row_header:
        uint64_t magic
        uint32_t layout_version
        uint32_t node_id
        uint64_t incarnation
        uint64_t epoch
        uint64_t row_size
        uint64_t layout_hash
        uint64_t control_version
        uint64_t control[16]

    cdef struct area_header:
        uint64_t version
        uint32_t size
        uint32_t crc

    cdef struct subgroup_columns:
        uint64_t published
        uint64_t silent_from
        uint64_t silent_until
        uint64_t received
        uint64_t delivered
        uint64_t persisted
        uint64_t delivered_wanted
        uint64_t larges

    cdef struct slot_header:
        uint64_t index
        uint32_t size
        uint8_t kind
        uint8_t tag
        uint16_t writer_id
        uint64_t run
        uint64_t source_ns

    cdef struct keyed_slot_header:
        slot_header slot
        uint64_t key

    cdef struct large_entry:
        uint64_t id
        uint64_t size
        char first[8]
        char last[16]

    cdef struct inbox_header:
        uint64_t magic
        uint64_t committed
        uint64_t space_waiting
        uint64_t signs

    cdef struct inbox_progress:
        uint64_t magic
        uint64_t consumed
        uint64_t acknowledged
        uint64_t persisted
        uint64_t size_max
        uint64_t slots
        uint64_t refused
        uint64_t writer_id

    cdef struct log_record:
        uint64_t position
        uint32_t size
        uint8_t kind
        uint8_t tag
        uint16_t writer_id
        uint64_t key
        uint64_t sequence
        uint64_t source_ns
        uint64_t reception_ns
        uint32_t sender
        uint32_t relay
        uint64_t view_id

    cdef struct log_header:
        uint64_t magic
        uint64_t capacity
        uint64_t hot
        uint64_t keeps_history
        uint64_t behind_view
        uint64_t behind_sequence
        uint64_t given_up
        uint64_t said_ns
        uint64_t tail
        uint64_t count
        uint64_t stopped
        uint64_t blocked
        uint64_t hot_position
        uint64_t version
        uint64_t oldest_position
        uint64_t oldest_offset
        uint64_t oldest_index
        uint64_t tail_offset

    cdef struct cursor_page:
        uint64_t magic
        uint64_t position
        uint64_t index
        uint64_t armed
        uint64_t attended
        uint64_t table_read

    cdef struct cursor_start:
        uint64_t position
        uint64_t offset
        uint64_t index
        uint64_t keep_all

    uint32_t first_bit(uint64_t bits) noexcept
    uint32_t last_bit(uint64_t bits) noexcept
    uint64_t align_up(uint64_t n, uint64_t to) noexcept
    uint64_t slot_stride(uint64_t size_max) noexcept
    uint64_t ring_slots(uint64_t window) noexcept
    uint64_t record_stride(uint64_t size) noexcept
