"""What came with a message, and messages that carry it.

A message type (message_type) is bytes with the record header hidden behind the payload (message_bytes.h): one object
per message. The info object is made when somebody asks for it.
"""
from libc.stdint cimport uint64_t

from cpython.object cimport PyObject_GenericSetAttr
from spindle_core.layout cimport LOG_LARGE, log_record

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        object (*tp_new)(PyTypeObject *kind, object arguments, void *keywords)

cdef tuple NO_ARGUMENTS = ()


# Included here only: its functions are static, and the type is known by the address of one of them.
cdef extern from "message_bytes.h":
    cdef struct message_tail:
        log_record record
        void *info_type
    message_tail *message_tail_of(object message)
    object message_bytes_make_type()
    bint message_bytes_is_type(object kind)
    object message_bytes_new(object kind, const char *payload, size_t size, const log_record *record, object info_type)


cdef class MessageInfo:
    """What came with a message. Subclassable; the attributes are boxed only when asked for."""

    @property
    def source_timestamp(self):
        """When it was written, UTC ns."""
        return self._source_ns

    @property
    def reception_timestamp(self):
        """When it was delivered on this node, UTC ns."""
        return self._reception_ns

    @property
    def sender(self):
        """Node id of the sender."""
        return self._sender

    @property
    def writer(self):
        """Number of the writer on the sending node."""
        return self._writer

    @property
    def relay(self):
        """With `writer`: which writer on a host without a node it is; 0 for writers of applications beside a node."""
        return self._relay

    @property
    def tag(self):
        """What the message is to the layer above, which gave it; 0: an ordinary one."""
        return self._tag

    @property
    def key(self):
        """Of what it is about, as the layer above gave it; 0: of nothing in particular, or the topic has no keys."""
        return self._key

    @property
    def large(self):
        """True for a sample that was larger than the topic's slots, whose bytes lay beside."""
        return self._large

    @property
    def sequence(self):
        """Sequence number: place in the delivery order of its epoch; the same on every node."""
        return self._sequence

    @property
    def view_id(self):
        """View in which it was delivered."""
        return self._view_id

    @property
    def index(self):
        """Messages delivered before it, as its reader counts them: dense, of this node only."""
        return self._index

    def __repr__(self):
        return (f"<{type(self).__name__} sender={self.sender} view={self.view_id} sequence={self.sequence}"
                f" index={self.index}>")


cdef object make_info(type info_type, const log_record *r, uint64_t index):
    # Straight to what calling the type would call first; a type may override __new__.
    cdef MessageInfo info = <MessageInfo?>(<PyTypeObject *>info_type).tp_new(
        <PyTypeObject *>info_type, NO_ARGUMENTS, NULL)
    info._source_ns = r.source_ns
    info._reception_ns = r.reception_ns
    info._sequence = r.sequence
    info._view_id = r.view_id
    info._index = index
    info._sender = r.sender
    info._relay = r.relay
    info._writer = r.writer_id
    info._tag = r.tag
    info._large = r.kind == LOG_LARGE
    info._key = r.key
    return info


cdef bint is_message_type(object kind):
    return isinstance(kind, type) and message_bytes_is_type(kind)


cdef object new_message(object kind, const char *payload, size_t size, const log_record *r, uint64_t index,
                        object info_type):
    cdef object message = message_bytes_new(kind, payload, size, r, info_type)
    message_tail_of(message).record.position = index
    return message


def message_info(message):
    """What came with a message, of the type that its reader chose; a new object at every call. TypeError otherwise."""
    cdef message_tail *tail
    if not is_message_type(type(message)):
        raise TypeError(f"a {type(message).__name__} carries no info: only messages that readers made do")
    tail = message_tail_of(message)
    return make_info(<type>tail.info_type, &tail.record, tail.record.position)


cdef object give_info(object sample, object attribute, object info):
    """The program's own object has the info in this attribute, also if it is a frozen dataclass."""
    try:
        setattr(sample, attribute, info)
    except AttributeError:
        PyObject_GenericSetAttr(sample, attribute, info)


def message_type(str name, str module, str info_attribute, str doc):
    """A new type of messages, for LogReader.take: bytes whose attribute `info_attribute` is their info."""
    kind = message_bytes_make_type()
    kind.__name__ = kind.__qualname__ = name
    kind.__module__ = module
    kind.__doc__ = doc
    setattr(kind, info_attribute, property(message_info))
    return kind
