"""The predicate thread: drives step(), idles without spinning a core."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from spindle_core.fabric.fabric cimport fabric_t
from spindle_core.layout cimport bell_page
from spindle_core.state cimport node_t


cdef struct driver_t:
    node_t *node                 # NULL before the first view; changed only while parked
    uint32_t stop
    uint32_t park                # asked to park: the ticket of who asks; 0: nobody
    uint32_t parked              # the ticket for which it stands still
    uint32_t running
    uint32_t driving             # held by who evaluates predicates: this thread whenever it is not blocked
    uint32_t commits             # by applications since it announced that it would block
    int resume_fd
    int bell_fd
    uint64_t rung                # for which sleep somebody of this process rang last
    int wait_fd                  # readable when the bell is rung, or a fabric that needs help has something
    bell_page *bell
    uint64_t busy_poll_ns
    uint64_t *counters


cdef void drive(driver_t *d) noexcept nogil
cdef void announce_sleep(driver_t *d) noexcept nogil
cdef int until_next_beat_ms(node_t *node) noexcept nogil
cdef int64_t commits_asleep(driver_t *d) noexcept nogil
cdef bint try_to_drive(driver_t *d) noexcept nogil
cdef void stop_driving(driver_t *d) noexcept nogil
