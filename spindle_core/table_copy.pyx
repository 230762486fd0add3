"""Reading a copy of a table of the last messages of each key, as DeliveryLog.copy_table() makes it."""
from libc.stdint cimport uint64_t

from spindle_core.layout cimport LOG_LARGE, LOG_RING_OFFSET, log_header, log_record, record_stride
from spindle_core.memory cimport Mapping

from cpython.bytes cimport PyBytes_FromStringAndSize


def table_place(Mapping copy not None):
    """Of a copy of a table: the place in the order (view id, sequence) behind all that it stands for."""
    cdef log_header *h = <log_header *>copy.base
    return h.behind_view, h.behind_sequence


def table_messages(Mapping copy not None):
    """The messages of a copy of a table, in the order; each as the arguments of DeliveryLog.append(). Of a large sample
    the payload is its entry."""
    cdef log_header *h = <log_header *>copy.base
    cdef log_record *r
    cdef uint64_t at = 0
    while at < h.tail:
        r = <log_record *>(copy.base + LOG_RING_OFFSET + at)
        payload = PyBytes_FromStringAndSize(<char *>r + sizeof(log_record), r.size)
        yield (payload, r.sender, r.sequence, r.view_id, r.source_ns, r.writer_id, r.reception_ns, r.relay, r.tag,
               r.key, r.kind == LOG_LARGE)
        at += record_stride(r.size)
