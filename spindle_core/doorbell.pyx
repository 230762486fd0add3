"""The doorbell by which a node rings one reader or writer of an application: a pair of ends."""
import os

from spindle_core.events cimport EVENT_END, c_close, end_fd, end_ring

from spindle_core.ends import make_ends


cdef class Doorbell:
    """What a Cursor and an Inbox have in common. `within`: the application is in the node's process. Raises OSError,
    where it is made, if no descriptors are left."""

    def __cinit__(self):
        self.ring_end = self.their_fd = -1

    def __init__(self, bint within=False):
        self.ring_end, self.their_fd = make_ends(within)
        if within:
            self.ring_end |= EVENT_END

    def hand_over(self):
        """The application has its end: the node keeps no copy of it. Idempotent."""
        if self.their_fd >= 0:
            os.close(self.their_fd)
            self.their_fd = -1

    def hang_up(self):
        """Rings once more, and never again. Idempotent."""
        if self.ring_end >= 0:
            end_ring(self.ring_end)
            os.close(end_fd(self.ring_end))
            self.ring_end = -1
        self.hand_over()

    def __dealloc__(self):
        if self.ring_end >= 0:
            c_close(end_fd(self.ring_end))
        if self.their_fd >= 0:
            c_close(self.their_fd)
