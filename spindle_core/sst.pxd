"""Shared state table: pushes of parts of the own row."""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.state cimport node_t, subgroup_t


cdef void push(node_t *node, subgroup_t *s, uint64_t offset, uint64_t length, uint32_t flags) noexcept nogil
cdef void push_more(node_t *node, subgroup_t *s, uint64_t offset, uint64_t length, uint32_t flags) noexcept nogil
cdef void push_published(node_t *node, subgroup_t *s) noexcept nogil
cdef void push_acknowledged(node_t *node, subgroup_t *s, uint32_t flags) noexcept nogil
cdef void post_to_all(node_t *node, uint64_t offset, uint64_t length, uint32_t flags) noexcept nogil
cdef void push_received(node_t *node, subgroup_t *s) noexcept nogil
cdef void lock_subgroup(subgroup_t *s) noexcept nogil
cdef void unlock_subgroup(subgroup_t *s) noexcept nogil
cdef void lock_to_post(node_t *node, subgroup_t *s) noexcept nogil
cdef bint room_to_push(node_t *node, subgroup_t *s, uint32_t pushes) noexcept nogil
cdef void hold_until_posted(node_t *node, subgroup_t *s) noexcept nogil
