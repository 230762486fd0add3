"""What a layer above knows of each key of a topic. See keyed.pyx."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from spindle_core.layout cimport log_record
from spindle_core.message cimport MessageInfo

cdef enum:
    PIECES_MAX = 8               # of a key
    WRITERS_MAX = 4              # that a key remembers
    RAWS_MAX = 4                 # byte forms of one key that are remembered


cdef class KeyPlaces:
    cdef readonly bytes head                 # every payload of the layout begins with it
    cdef readonly uint64_t size              # bytes of every payload of the layout; 0 = they differ
    cdef uint32_t offsets[PIECES_MAX]        # bytes
    cdef uint32_t sizes[PIECES_MAX]          # bytes; 0 = a length stands there, and its bytes follow
    cdef int count

    cdef bytes find(self, const char *payload, uint64_t size)


cdef class Keyed:
    cdef public object handle, generation
    cdef public bint new
    cdef uint64_t settled[WRITERS_MAX]       # writers whose messages change nothing; 0 = none
    cdef uint8_t next_settled
    cdef tuple raws                          # under which the table has it
    cdef Given given                         # in the collection that is being made


cdef class KeyTable:
    cdef readonly KeyPlaces places
    cdef dict by_raw

    cdef Keyed find_settled(self, const char *payload, uint64_t size, const log_record *r)


cdef class Given:
    cdef readonly object handle, generation
    cdef readonly bint new
    cdef readonly uint64_t count             # messages of the key in the collection


cdef class KeyedInfo(MessageInfo):
    cdef Given given
    cdef uint64_t place                      # among the messages of its key in its collection


cdef int settle(Keyed keyed, const log_record *r) except -1
cdef Given give(Keyed keyed, list opened)
cdef int close_collection(list opened) except -1
