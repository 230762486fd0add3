"""What belongs to a topic whatever the view: its delivery log, inboxes, upcall, and how far its journal is.

It is bound to the topic's number, and every epoch that is installed gets it anew.
"""
from dataclasses import dataclass, field

from spindle_core.hot_path cimport make_doors, note
from spindle_core.atomics cimport u64_store_release
from spindle_core.delivery cimport Cursor, DeliveryLog
from spindle_core.driving cimport Driving
from spindle_core.epoch cimport Epoch
from spindle_core.inbox cimport Inbox
from spindle_core.layout cimport record_stride
from spindle_core.timing cimport Timing
from spindle_core.state cimport INBOXES_MAX, subgroup_t, upcall_fn


@dataclass
class Binding:
    """What belongs to a topic whatever the view."""

    log: object = None
    timing: object = None
    inboxes: list = field(default_factory=list)
    held: bool = False
    receipt_held: bool = False
    upcall: int = 0
    upcall_context: int = 0
    upcall_batches: bool = False
    durable: int = 0
    kept: object = None


cdef class Bindings(Driving):
    """The topics' bindings of one node, by number."""

    def __cinit__(self):
        self.bindings = {}

    cdef int apply_binding(self, Epoch epoch, topic_id, binding) except -1:
        """Parked, or before the epoch is installed."""
        cdef subgroup_t *s = epoch.subgroup(topic_id)
        if s.mine == NULL:
            return 0
        least = 2 * record_stride(s.size_max)
        if binding.log is not None and binding.log.capacity < least:
            raise ValueError(f"a log of {binding.log.capacity} bytes for messages of up to {s.size_max}: it must hold"
                             f" two of them, {least} bytes")
        s.log = (<DeliveryLog>binding.log).pointer() if binding.log is not None else NULL
        # Delivery of the epoch's own messages begins with the epoch, or when it is held no longer. What the log has by
        # then came before them. Until then persist() says nothing.
        if s.log != NULL and (self.epoch is not epoch or (s.held and not binding.held)):
            s.durable_before = s.log.count
        s.timing = (<Timing>binding.timing).pointer() if binding.timing is not None else NULL
        s.held = binding.held
        s.receipt_held = binding.receipt_held
        s.upcall = <upcall_fn><size_t>binding.upcall
        s.upcall_context = <void *><size_t>binding.upcall_context
        s.upcall_batches = binding.upcall_batches
        u64_store_release(&s.durable, binding.durable)
        s.n_inboxes = 0
        if s.my_sender >= 0 and not s.closed:
            for inbox in binding.inboxes:
                s.inboxes[s.n_inboxes] = (<Inbox>inbox).pointer()
                s.n_inboxes += 1
        return 0

    def _rebind(self, topic_id):
        if self.epoch is not None and self.epoch.has_topic(topic_id):
            self.apply_binding(self.epoch, topic_id, self.bindings[topic_id])
            self.open_doors(self.epoch)

    cdef int open_doors(self, Epoch epoch) except -1:
        """After apply_binding(): passes look at the inboxes that are bound now. Parked, or before it is installed."""
        if make_doors(&epoch.node) < 0:
            raise MemoryError()
        return 0

    def bind_log(self, topic_id, DeliveryLog log):
        """Delivers the topic into `log` from now on (None: nowhere)."""
        with self.parked():
            binding = self.bindings.setdefault(topic_id, Binding())
            if binding.log is not log:
                binding.log, binding.durable = log, 0
            self._rebind(topic_id)

    def bind_timing(self, topic_id, Timing timing):
        """Notes what the topic's messages say of time in `timing` from now on (None: nowhere)."""
        with self.parked():
            self.bindings.setdefault(topic_id, Binding()).timing = timing
            self._rebind(topic_id)

    def add_reader(self, topic_id, Cursor cursor not None):
        """Places a cursor in the topic's log. ValueError without a log or beyond CURSORS_MAX readers."""
        with self.parked():
            log = self.bindings.setdefault(topic_id, Binding()).log
            if log is None:
                raise ValueError(f"topic {topic_id} has no delivery log here")
            log.add_reader(cursor)

    def remove_reader(self, topic_id, Cursor cursor not None):
        """Forgets a cursor; what it held back comes free."""
        with self.parked():
            binding = self.bindings.get(topic_id)
            if binding is not None and binding.log is not None:
                binding.log.remove_reader(cursor)

    def add_inbox(self, topic_id, Inbox inbox not None):
        """Takes messages from this inbox from now on. ValueError beyond INBOXES_MAX writers."""
        with self.parked():
            binding = self.bindings.setdefault(topic_id, Binding())
            if len(binding.inboxes) >= INBOXES_MAX:
                raise ValueError(f"topic {topic_id} has {INBOXES_MAX} writers on this node, which is the limit")
            binding.inboxes.append(inbox)
            self._rebind(topic_id)

    def remove_inbox(self, topic_id, Inbox inbox not None):
        """Takes no more from this inbox; messages already taken over go on."""
        with self.parked():
            binding = self.bindings.get(topic_id)
            if binding is not None and inbox in binding.inboxes:
                binding.inboxes.remove(inbox)
                self._rebind(topic_id)

    def hold_delivery(self, topic_id, *, receipt=False):
        """Delivers nothing of this topic until release_delivery: a joiner's history comes first.

        receipt: receives nothing either, until then. A member owes its readers whatever it has received when an epoch
        ends; if it owes them something already, it must not take another window of every sender at each view change.
        Unordered topics, whose messages nobody sends again, are received all the same.
        """
        with self.parked():
            binding = self.bindings.setdefault(topic_id, Binding())
            binding.held, binding.receipt_held = True, binding.receipt_held or receipt
            self._rebind(topic_id)

    def release_delivery(self, topic_id):
        """Ends hold_delivery."""
        with self.parked():
            binding = self.bindings.setdefault(topic_id, Binding())
            binding.held = binding.receipt_held = False
            self._rebind(topic_id)

    def set_durable(self, topic_id, delivered_index, DeliveryLog log=None):
        """The journal has everything before this index of the delivery log on disk.

        `log`: the one that the journal read; None: the topic's present one. A report of a log that the topic no longer
        has, because this node has left it meanwhile, is ignored.
        """
        cdef subgroup_t *s
        with self.lock:
            binding = self.bindings.get(topic_id)
            if binding is None or binding.log is None or (log is not None and binding.log is not log):
                return
            binding.durable = max(binding.durable, delivered_index)
            if self.epoch is not None and self.epoch.has_topic(topic_id):
                s = self.epoch.subgroup(topic_id)
                # SYNC POINT: durable. Pairs with the persist predicate.
                u64_store_release(&s.durable, binding.durable)
                note(s.node, s)
        self.ring()

    def set_upcall(self, topic_id, function, context=0, *, batches=True, keep=None):
        """Delivers to a C function: void (*)(void *context, const delivery_t *messages, uint32_t n).

        `function` and `context` are addresses (0: none); `batches` False: one call per message (paper, section 3.5).
        It runs in the thread that evaluates the predicates, one call at a time: the predicate thread, or one that waits
        for a slot. The payloads are in place: it must be quick, never block, and keep nothing.
        `keep` is kept alive with it (a ctypes callback, say).
        """
        with self.parked():
            binding = self.bindings.setdefault(topic_id, Binding())
            binding.upcall, binding.upcall_context, binding.upcall_batches = function, context, batches
            binding.kept = keep
            self._rebind(topic_id)

    def forget_topic(self, topic_id):
        """Drops all bindings of a topic that the installed view doesn't have any more."""
        with self.parked():
            if self.epoch is not None and self.epoch.has_topic(topic_id):
                self.bindings[topic_id] = Binding()
                self._rebind(topic_id)
            self.bindings.pop(topic_id, None)
