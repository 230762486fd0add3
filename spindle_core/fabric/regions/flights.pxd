"""Requests on their way: checked, posted, completed. The same for every part."""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.fabric.regions.regions cimport asker_t, regions_t, request_t


cdef int post(regions_t *r, asker_t *asker, const request_t *requests, uint32_t n, uint32_t *bad) noexcept nogil
cdef void tell(asker_t *asker, uint32_t peer, uint64_t cookie, uint32_t status, uint64_t value) noexcept nogil
cdef bint done(regions_t *r, uint32_t peer, uint64_t number, uint32_t status, uint64_t value) noexcept nogil
cdef void end_peer(regions_t *r, uint32_t peer, uint32_t why) noexcept nogil
cdef void abandon(regions_t *r, const asker_t *asker) noexcept nogil
cdef uint32_t allowed(const regions_t *r, uint32_t peer, uint32_t kind, uint64_t key, uint64_t offset, uint64_t length,
                      char **place) noexcept nogil
