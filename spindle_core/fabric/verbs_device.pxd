"""An RDMA device, as one fabric has it open: what is registered with it, and its queue pairs."""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.fabric.verbs_api cimport (
    ibv_context,
    ibv_cq,
    ibv_device_attr,
    ibv_gid,
    ibv_mr,
    ibv_pd,
    ibv_port_attr,
    ibv_qp,
)


cdef class VerbsDevice:
    cdef ibv_context *context
    cdef ibv_pd *pd
    cdef ibv_device_attr limits
    cdef ibv_port_attr link
    cdef ibv_gid gid
    cdef ibv_mr **regions        # everything registered
    cdef uint32_t n_regions, regions_max
    cdef readonly str name
    cdef readonly int port
    cdef readonly int gid_index

    cdef int choose_gid(self, int gid_index) except -1
    cdef ibv_mr *add_region(self, void *base, uint64_t size, int access) except NULL
    cdef void end_region(self, ibv_mr *region)
    cdef ibv_qp *make_queue_pair(self, ibv_cq *send_cq, ibv_cq *receive_cq, uint32_t sends, uint32_t receives,
                                 uint32_t *inline_max) except NULL
    cdef int connect(self, ibv_qp *qp, uint32_t there, uint32_t packet, address, ack_timeout, retries) except -1
