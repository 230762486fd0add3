"""The user's end of a link."""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.layout cimport bell_page, link_pool_page, link_request, link_user_page


cdef class LinkUser:
    cdef link_user_page *user
    cdef const link_pool_page *pool
    cdef object kept
    cdef const bell_page *bell   # of who drives the pool; NULL: it looks by itself
    cdef int bell_fd, end
    cdef uint64_t rung
    cdef uint64_t filled         # requests that were added, submitted or not
    cdef uint64_t list_from      # the first of the list that is being made
    cdef uint64_t duplexes_taken
    cdef uint64_t expected       # cookie of the request whose outcome is kept
    cdef bint expects            # that one has yet to be submitted
    cdef readonly bint on_way    # it was submitted, and take() has not come upon its completion
    cdef readonly object outcome  # with what it has completed: (status name, value); None: it has not
    cdef bint gone               # its node has ended: nobody rings any more
    cdef uint32_t forks          # when it was made

    cdef link_request *add(self, uint32_t kind, cookie, signalled) except NULL
    cdef int alone(self) except -1
    cdef bint has_news(self) noexcept nogil
    cdef bint lie_down(self) noexcept nogil
