"""Both ends of rings that a network lies between. See remote.pyx."""
from libc.stdint cimport uint64_t

from spindle_core.delivery cimport DeliveryLog
from spindle_core.inbox cimport Inbox
from spindle_core.inbox_writer cimport InboxWriter
from spindle_core.layout cimport bell_page
from spindle_core.memory cimport Mapping
from spindle_core.reader cimport LogReader


cdef class Bell:
    cdef readonly Mapping page
    cdef readonly int fd
    cdef bell_page *bell


cdef class Outbox(Inbox):
    cdef readonly uint64_t taken         # messages handed out by take(), from the first ever
    cdef uint64_t last_ns                # source timestamp of the last of them
    cdef uint64_t freed_ns               # and of the last one that needs no slot any more
    cdef bint keep


cdef class ArrivalLog(DeliveryLog):
    pass


cdef class ArrivalReader(LogReader):
    pass


cdef class RelayWriter(InboxWriter):
    cdef uint64_t last_ns                # source timestamp of the last message
