"""The time that a topic's order agrees on, as the node's control thread sees it. See timing.pxi."""
from libc.string cimport memcpy, memset

from spindle_core.hot_path cimport timing_note, timing_say
from spindle_core.timing cimport TIMING_SAYS, TIMING_STAMPED, timing_t


cdef class Timing:
    """Of one topic on one node, for as long as it is a member. kinds: what a message says of time, by its tag: 256
    numbers (TIMING_... of timing.pxd). Raises ValueError for others.

    To be called while no engine delivers the topic: parked, or by who holds its delivery.
    """

    def __init__(self, bytes kinds not None):
        if len(kinds) != 256 or max(kinds) > TIMING_SAYS + TIMING_STAMPED:
            raise ValueError("what messages say of time must be 256 numbers from 0 to 7")
        memset(&self.state, 0, sizeof(timing_t))
        memcpy(self.state.kinds, <const unsigned char *>kinds, 256)

    cdef timing_t *pointer(self) noexcept:
        return &self.state

    def note(self, bytes payload not None, tag, writer_id, source_ns):
        """The message that follows in the order, where no log hears of it."""
        timing_note(&self.state, tag, writer_id, source_ns, payload, len(payload))

    def say(self, now_ns):
        """The order has said so; 0: nothing."""
        if now_ns:
            timing_say(&self.state, now_ns)

    @property
    def said_ns(self):
        """The time that the order has said, UTC; 0: none. It goes back only where far too much was said."""
        return self.state.said_ns

    @property
    def doubted(self):
        """Something has come that was over by then, though its own timestamp is far earlier than that."""
        return bool(self.state.doubted)

    def settle(self):
        """Nothing is doubted any more, until something else comes that was over."""
        self.state.doubted = False

    @property
    def next_ns(self):
        """When something is over next that the order has not said yet, UTC; 0: never."""
        return self.state.dues[0] if self.state.n_dues else 0

    @property
    def dues(self):
        """All such times, ascending."""
        return [self.state.dues[i] for i in range(self.state.n_dues)]
