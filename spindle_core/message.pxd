"""What came with a message, and messages that carry it. See message.pyx and message_bytes.h."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from spindle_core.layout cimport log_record


cdef class MessageInfo:
    cdef uint64_t _source_ns, _reception_ns, _sequence, _view_id, _index, _key
    cdef uint32_t _sender, _relay
    cdef uint16_t _writer
    cdef uint8_t _tag
    cdef bint _large


cdef object make_info(type info_type, const log_record *r, uint64_t index)
cdef object give_info(object sample, object attribute, object info)
cdef bint is_message_type(object kind)
cdef object new_message(object kind, const char *payload, size_t size, const log_record *r, uint64_t index,
                        object info_type)
