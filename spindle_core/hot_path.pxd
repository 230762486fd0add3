"""What the hot path offers to other modules: hot_path.pyx lists its parts, each of which says what its functions do."""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from spindle_core.large cimport large_t, larges_t
from spindle_core.lasts cimport lasts_t
from spindle_core.layout cimport bell_page, cursor_page, large_entry, log_record, slot_header
from spindle_core.log cimport log_t
from spindle_core.state cimport node_t, subgroup_t
from spindle_core.timing cimport timing_t


# The stages of a pass, in order. With `exchange_first`, SEND to NULL_SEND come for all topics, then DELIVER and PERSIST
# for all; without it all five come topic by topic.
cdef enum stage:
    STAGE_BEAT                   # my heartbeat is due
    STAGE_CONTROL                # control columns, mine and the others'
    STAGE_TOPICS                 # which topics are to be visited
    STAGE_NEXT                   # the next one of them
    STAGE_SEND
    STAGE_RECEIVE
    STAGE_NULL_SEND
    STAGE_DELIVER
    STAGE_PERSIST


cdef struct driver_t:
    node_t *node                 # NULL before the first view; changed only while parked
    uint32_t stop
    uint32_t park                # asked to park: the ticket of who asks; 0: nobody
    uint32_t parked              # the ticket for which it stands still
    bint running                 # looked at and changed by who drives: only then may others evaluate the predicates
    uint32_t driving             # held by who evaluates predicates: this thread, unless it is blocked or has yielded
    uint32_t blocked             # this thread is blocked, or about to look for the last time before it blocks
    uint32_t untimed             # it is blocked until it is rung: when it fell asleep no heartbeat was wanted
    uint32_t attended            # held by the one thread at a time that waits for data and drives meanwhile (attending)
    uint32_t relieved            # that one is awake, and drives as soon as this thread falls asleep
    uint32_t commits             # by applications since it announced that it would block
    int resume_fd
    int bell_fd
    int wait_fd                  # readable when the bell is rung, or a fabric that needs help has something
    bell_page *bell
    uint64_t busy_poll_ns
    int nice                     # added to this thread's nice value while it mostly sleeps
    uint32_t realtime            # its real-time priority while it mostly sleeps beside who doesn't; 0: none
    uint64_t clock_ns            # CLOCK_REALTIME minus CLOCK_MONOTONIC, read again now and then by who drives
    uint64_t used_ns             # processor time of this thread, as it was read last
    uint64_t *counters


# activity.pxi
cdef int make_activity(node_t *node) noexcept nogil
cdef void free_activity(node_t *node) noexcept nogil
cdef int make_doors(node_t *node) noexcept nogil
cdef void note(node_t *node, subgroup_t *s) noexcept nogil
cdef void note_all(node_t *node) noexcept nogil
cdef void look_changed(node_t *node, uint64_t *topics) noexcept nogil

# sst.pxi
cdef void post_to_all(node_t *node, uint64_t offset, uint64_t length, uint32_t flags) noexcept nogil
cdef void lock_subgroup(subgroup_t *s) noexcept nogil
cdef void unlock_subgroup(subgroup_t *s) noexcept nogil

# smc.pxi
cdef slot_header *slot_of(char *slots, subgroup_t *s, uint64_t index) noexcept nogil
cdef uint64_t claimable(subgroup_t *s, uint64_t wanted) noexcept nogil
cdef uint64_t claim(subgroup_t *s, uint64_t n) noexcept nogil
cdef void fill_header(subgroup_t *s, uint64_t index, uint32_t size, uint16_t writer_id,
                      uint64_t source_ns, uint64_t key) noexcept nogil
cdef char *payload_of(subgroup_t *s, slot_header *h) noexcept nogil
cdef uint64_t *key_of(slot_header *h) noexcept nogil
cdef void fill_nulls(subgroup_t *s, uint64_t n) noexcept nogil
cdef void mark_ready(subgroup_t *s, uint64_t index, uint64_t n) noexcept nogil
cdef void advance_committed(subgroup_t *s) noexcept nogil

# lasts_memory.pxi, lasts_ranked.pxi, lasts.pxi, lasts_over.pxi
cdef lasts_t *lasts_make(const uint8_t *effects, uint64_t depth, uint64_t bytes_max, uint64_t secret) noexcept nogil
cdef void lasts_rank(lasts_t *l, const uint8_t *ranks) noexcept nogil
cdef void lasts_free(lasts_t *l) noexcept nogil
cdef void lasts_clear(lasts_t *l) noexcept nogil
cdef void lasts_note(lasts_t *l, const log_record *r) noexcept nogil
cdef uint64_t lasts_log_bytes(lasts_t *l) noexcept nogil
cdef void lasts_copy(lasts_t *l, char *ring) noexcept nogil
cdef void lasts_restore_over(lasts_t *l, uint64_t key, uint64_t ns, bint waits) noexcept nogil
cdef void lasts_restored(lasts_t *l) noexcept nogil

# timing.pxi
cdef void timing_say(timing_t *t, uint64_t now_ns) noexcept nogil
cdef bint timing_note(timing_t *t, uint8_t tag, uint16_t writer_id, uint64_t source_ns, const char *payload,
                      uint64_t size) noexcept nogil

# log.pxi
cdef void log_refresh_cursors(log_t *log) noexcept nogil
cdef char *log_reserve(log_t *log, uint64_t size) noexcept nogil
cdef void log_commit(log_t *log, uint64_t size) noexcept nogil
cdef void log_show_time(log_t *log, const timing_t *timing) noexcept nogil
cdef void log_publish(log_t *log) noexcept nogil
cdef uint32_t log_take_armed(log_t *log, int *readers, uint32_t most) noexcept nogil
cdef void log_set_blocked(log_t *log, bint blocked) noexcept nogil

# large.pxi
cdef large_t *find_large(larges_t *l, uint64_t id) noexcept nogil
cdef bint larges_add(larges_t *l, uint64_t id) noexcept nogil
cdef bint larges_drop(larges_t *l, uint64_t id) noexcept nogil
cdef bint larges_have(larges_t *l, uint64_t id) noexcept nogil
cdef bint larges_use(larges_t *l, uint64_t id) noexcept nogil
cdef void larges_unuse(larges_t *l, uint64_t id) noexcept nogil
cdef void larges_forget_want(larges_t *l, uint64_t id) noexcept nogil
cdef void lock_larges(larges_t *l) noexcept nogil
cdef void unlock_larges(larges_t *l) noexcept nogil
cdef void log_pop_larges_before(log_t *log, uint64_t position) noexcept nogil
cdef bint log_large_room(log_t *log, uint64_t size) noexcept nogil
cdef void log_push_large(log_t *log, const large_entry *entry) noexcept nogil
cdef void log_sweep_larges(log_t *log) noexcept nogil

# predicates/deliver.pxi
cdef bint deliver_trimmed(node_t *node, subgroup_t *s, const unsigned long long *trim) noexcept nogil
cdef bint skip_null_rounds(subgroup_t *s, uint64_t most) noexcept nogil
cdef void to_next_place(subgroup_t *s) noexcept nogil

# effects.pxi
cdef void carry_out(node_t *node) noexcept nogil
cdef int whole_pass(node_t *node, uint64_t now_ns) noexcept nogil
cdef int evaluate_whole(node_t *node, subgroup_t *s, stage which) noexcept nogil
cdef void tell_control(node_t *node) noexcept nogil

# thread.pxi
cdef void drive(driver_t *d) noexcept nogil
cdef void announce_sleep(driver_t *d) noexcept nogil
cdef int until_next_beat_ms(node_t *node) noexcept nogil
cdef int64_t commits_asleep(driver_t *d) noexcept nogil
cdef bint try_to_drive(driver_t *d) noexcept nogil
cdef void stop_driving(driver_t *d) noexcept nogil

# attending.pxi
cdef enum attention:
    ATTEND_DATA                  # more has come than was known
    ATTEND_ASLEEP                # there is none, and the node sleeps: the caller may sleep at its bell
    ATTEND_OTHERS                # there is none, and another thread drives: the caller waits until it is rung

cdef bint begin_attending(driver_t *d) noexcept nogil
cdef void end_attending(driver_t *d) noexcept nogil
cdef attention attend(driver_t *d, cursor_page *page, const uint64_t *count, uint64_t known, uint64_t most_ns,
                      bint rung) noexcept nogil
cdef int sleep_attending(driver_t *d, cursor_page *page, const uint64_t *count, uint64_t known, int data_end,
                         int other_fd, int timeout_ms) noexcept nogil

# claims.pxi
cdef uint64_t claim_slots(driver_t *driver, subgroup_t *s, uint64_t most, int timeout_ms,
                          uint64_t *first) noexcept nogil
cdef char *slot_payload(subgroup_t *s, uint64_t index) noexcept nogil
cdef bint commit_slots(driver_t *driver, subgroup_t *s, uint64_t first, uint64_t n, const uint32_t *sizes,
                       uint64_t source_ns) noexcept nogil
cdef void abort_slot(driver_t *driver, subgroup_t *s, uint64_t index) noexcept nogil
cdef void publish_for_thread(void *driver) noexcept nogil
