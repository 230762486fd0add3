from spindle_core.state cimport node_t, subgroup_t


cdef int send(node_t *node, subgroup_t *s) noexcept nogil
