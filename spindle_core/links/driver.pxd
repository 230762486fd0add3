"""The thread that drives a pool."""
from libc.stdint cimport uint32_t

from spindle_core.fabric.regions.regions cimport asker_t, part_t
from spindle_core.layout cimport bell_page
from spindle_core.links.pool cimport Pool
from spindle_core.links.spins cimport spins_t
from spindle_core.memory cimport Mapping


cdef struct driver_t:
    bell_page *bell
    int poller                   # an epoll: all that wakes the thread
    int own_fd                   # eventfd, for threads of this process
    uint32_t called              # somebody of this process wants the thread
    part_t *armed[8]             # ways that tell of what comes only while they are told to
    uint32_t n_armed
    const asker_t *asker         # completions that are for Python; NULL: none
    const asker_t *fetching      # the same of long messages
    spins_t spins


cdef class Driver:
    cdef driver_t state
    cdef readonly Pool pool
    cdef readonly Mapping bell
    cdef object kept, epoll
