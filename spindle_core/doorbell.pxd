"""The doorbell of an application's reader or writer. See doorbell.pyx."""


cdef class Doorbell:
    cdef readonly int ring_end           # the node's end
    cdef readonly int their_fd           # the application's, until it is handed over
