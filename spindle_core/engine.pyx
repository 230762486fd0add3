"""The node's core: the installed epoch, what is bound to its topics, and the predicate thread.

Everything that outlives a view is bound to a topic number here (delivery log, inboxes, upcall, journal position), and
is carried over by install(). Changes park the predicate thread between two steps, so that no structure is ever
shared between it and Python: parking takes microseconds, and nothing under it waits.

Rules for the caller: new_epoch, attach_peer for every other rank, install; wedge, deliver_to_trim for every topic
until True, install of the next. One thread at a time uses an Engine (a lock sees to it).
"""
import contextlib
import os
import select
import threading
import time
from dataclasses import dataclass, field

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from spindle_core.atomics cimport (
    fence_store_load,
    realtime_ns,
    u32_load_acquire,
    u32_load_relaxed,
    u32_store_release,
    u64_store_release,
)
from spindle_core.changeover cimport (
    check_resend, claims_open, close_claims, count_leftover, deliver_trim, freeze, resend, take_trim)
from spindle_core.counters cimport C_RESENT, C_VIEW_CHANGES, C_VIEW_ID, Counters
from spindle_core.delivery cimport Cursor, DeliveryLog
from spindle_core.direct cimport open_claim, silence
from spindle_core.epoch cimport Epoch
from spindle_core.events cimport c_close, event_ring, sched_yield
from spindle_core.inbox cimport Inbox
from spindle_core.layout cimport BELL_MAGIC, bell_page, record_stride
from spindle_core.memory cimport Mapping
from spindle_core.relayed cimport RelayedTable
from spindle_core.state cimport INBOXES_MAX, subgroup_t, upcall_fn
from spindle_core.step cimport step
from spindle_core.thread cimport announce_sleep, drive, driver_t, stop_driving, try_to_drive

from spindle_core.epoch import SubgroupSpec  # no-cython-lint: part of this module's surface
from spindle_core.switches import Switches

DRAIN_S = 1.0
OPEN_CLAIM_TIMEOUT_S = 1.0   # how long a wedge waits for a claimed slot to be filled before it becomes a null


@dataclass
class Binding:
    """What belongs to a topic whatever the view."""

    log: object = None
    inboxes: list = field(default_factory=list)
    held: bool = False
    upcall: int = 0
    upcall_context: int = 0
    upcall_batches: bool = False
    durable: int = 0
    kept: object = None


cdef int make_space_fd(subgroup_t *s) except -1:
    """What claims wait at: nothing to make where nobody can ring it, since no thread runs."""
    if s.mine != NULL and s.space_fd < 0:
        s.space_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    return 0


cdef class Engine:
    """One node's core. `busy_poll_us`: how long the predicate thread looks for work before it blocks."""

    def __cinit__(self):
        self.bell_fd = self.control_fd = self.resume_fd = -1
        memset(&self.driver, 0, sizeof(self.driver))

    def __init__(self, node_id, *, incarnation=1, Counters counters=None, switches=None, busy_poll_us=10):
        if not 0 <= node_id < 1 << 32:
            raise ValueError(f"node id {node_id}: must be between 0 and {(1 << 32) - 1}")
        if not 0 <= busy_poll_us <= 1_000_000:
            raise ValueError(f"busy_poll_us {busy_poll_us}: must be between 0 and 1000000 microseconds")
        self.node_id = node_id
        self.incarnation = incarnation
        self.switches = switches if switches is not None else Switches()
        self.counters = counters if counters is not None else Counters.create()
        self.counters_kept = self.counters.mapping.view()   # Counters.close() must not take them from the thread
        self.bindings = {}
        self.relayed = RelayedTable()
        self.lock = threading.RLock()
        self.bell = Mapping.create(f"spindle-bell-{node_id}", 4096)
        self.bell.seal_writes()
        self.bell_fd, self.control_fd, self.resume_fd = (
            os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(3))
        cdef bell_page *b = <bell_page *>self.bell.base
        b.node_id = node_id
        b.incarnation = incarnation
        b.magic = BELL_MAGIC
        self.driver.bell = b
        self.driver.bell_fd = self.driver.wait_fd = self.bell_fd
        self.driver.resume_fd = self.resume_fd
        self.driver.busy_poll_ns = busy_poll_us * 1000
        self.driver.counters = self.counters.values

    # ---- the predicate thread ----

    def start(self):
        """Starts the predicate thread. RuntimeError if it was started or stopped before."""
        if self.thread is not None or self.stopped:
            raise RuntimeError("an engine starts once")
        if self.epoch is not None:
            for i in range(self.epoch.node.n_subgroups):
                make_space_fd(&self.epoch.node.subgroups[<uint32_t>i])
        u32_store_release(&self.driver.running, 1)
        self.thread = threading.Thread(target=self._run, name=f"spindle-predicates-{self.node_id}", daemon=True)
        self.thread.start()

    def _run(self):
        cdef driver_t *d = &self.driver
        with nogil:
            drive(d)

    def stop(self, *, drain_s=DRAIN_S, disconnect=True):
        """Ends the predicate thread for good; applications see that the node has stopped. Idempotent.

        `drain_s`: how long what was posted may take to reach the peers. To those of an epoch that is over this is an
        orderly end; those of one that goes on notice that a member has gone. disconnect=False: that comes later.
        """
        with self.lock:
            if self.stopped:
                return
            self.stopped = True
            u32_store_release(&self.driver.stop, 1)
            event_ring(self.bell_fd)
            event_ring(self.resume_fd)
            if self.took_over:           # in the middle of a parking of ours
                self.took_over = False
                stop_driving(&self.driver)
            if self.thread is not None:
                self.thread.join()   # under the lock: who parks finds the thread ended, not in its last step
            self.say_last(drain_s)
            if disconnect:
                self.disconnect()
        u32_store_release(&self.driver.running, 0)
        u64_store_release(&self.driver.bell.stopped, 1)
        for binding in self.bindings.values():
            for inbox in binding.inboxes:
                event_ring((<Inbox>inbox).space_fd)
            if binding.log is not None:
                binding.log.stop()

    def disconnect(self):
        """Closes the connections of an engine that was stopped. Idempotent."""
        cdef Epoch epoch
        for epoch in (self.past, self.epoch):
            if epoch is not None:
                epoch.fabric.close()

    cdef int say_last(self, drain_s) except -1:
        """The thread has ended: last words."""
        cdef Epoch epoch
        cdef double until = time.monotonic() + drain_s
        cdef list epochs = [one for one in (self.past, self.epoch) if one is not None]
        if self.epoch is not None and (<Epoch>self.epoch).node.wedged:
            step(&(<Epoch>self.epoch).node, self.now_ns())    # a leaver's echo: the others wait for it
            (<Epoch>self.epoch).fabric.goodbye()
        while not all([epoch.drain() for epoch in epochs]) and time.monotonic() < until:
            time.sleep(0.0005)
        return 0

    def step_once(self, now_ns=0, *, falls_asleep=False):
        """One pass, in the caller's thread; only while the predicate thread isn't running. Returns what was done.

        `now_ns`: the time of a virtual clock, which view changes then use as well; by default the system's is read.
        falls_asleep: it is the last look before the caller waits for the bell, which is announced.
        """
        cdef int done
        self.virtual_ns = now_ns
        if self.thread is not None and not self.stopped:
            raise RuntimeError("the predicate thread is running")
        if falls_asleep:
            announce_sleep(&self.driver)
        if self.epoch is None:
            return 0
        done = step(&self.epoch.node, self.now_ns())
        if self.epoch.node.control_changed:
            self.epoch.node.control_changed = False
            event_ring(self.control_fd)
        return done

    cdef uint64_t now_ns(self) noexcept:
        return self.virtual_ns if self.virtual_ns else realtime_ns()

    cdef void ring(self) noexcept:
        fence_store_load()
        if u32_load_relaxed(&self.driver.bell.asleep):
            event_ring(self.bell_fd)

    cdef int park(self) except -1:
        """The predicate thread stands between two steps until resume(). Nests.

        One that is blocked is left asleep: whoever holds `driving` keeps it from stepping. Waking it only to see it
        stand would cost a wake-up here and one in resume(), on a busy host a time slice each.
        """
        cdef driver_t *d = &self.driver
        cdef uint32_t ticket
        self.lock.acquire()
        self.depth += 1
        if self.depth == 1 and self.thread is not None and not self.stopped:
            self.took_over = try_to_drive(d)
            if self.took_over:
                return 0
            self.ticket = self.ticket % 0xFFFFFFFF + 1   # of its own, so that nobody has to wait for the last one's end
            ticket = self.ticket
            u32_store_release(&d.park, ticket)
            event_ring(self.bell_fd)
            with nogil:
                while u32_load_acquire(&d.parked) != ticket and not u32_load_acquire(&d.stop):
                    sched_yield()
        return 0

    cdef int resume(self) except -1:
        cdef driver_t *d = &self.driver
        self.depth -= 1
        if self.depth == 0 and self.took_over:
            self.took_over = False
            stop_driving(d)
            self.ring()          # it looks anew at everything that was changed meanwhile
        elif self.depth == 0 and self.thread is not None and not self.stopped:
            u32_store_release(&d.park, 0)
            event_ring(self.resume_fd)
        self.lock.release()
        return 0

    # ---- epochs ----

    def new_epoch(self, epoch, my_rank, node_ids, subgroups, fabric=None):
        """The memory of a view, to be exchanged with the peers while the current one goes on. Raises ValueError.

        `fabric`: how the peers are reached; by default as nodes of this host.
        """
        if node_ids[my_rank] != self.node_id:
            raise ValueError(f"rank {my_rank} is node {node_ids[my_rank]}, this is node {self.node_id}")
        return Epoch(epoch, my_rank, node_ids, subgroups, self.incarnation, self.bell, self.bell_fd, fabric)

    def install(self, Epoch epoch not None):
        """Switches over to a complete epoch: bindings are carried over, own messages beyond the trim go first.

        Returns {topic_id: messages} that could not be sent again because this node is no sender there any more.
        Raises ValueError if a row is missing or the epoch isn't newer than the installed one.
        """
        cdef Epoch old = self.epoch
        cdef subgroup_t *s
        cdef subgroup_t *before
        cdef dict unsent = {}
        if not epoch.columns_ready:
            raise ValueError("rows are missing: attach_peer every other rank first")
        if old is not None and epoch.epoch <= old.epoch:
            raise ValueError(f"epoch {epoch.epoch} isn't newer than the installed {old.epoch}")
        w = self.switches
        epoch.node.batch_send = w.batch_send
        epoch.node.batch_receive = w.batch_receive
        epoch.node.batch_delivery = w.batch_delivery
        epoch.node.null_sends = w.null_sends
        epoch.node.post_after_unlock = w.post_after_unlock
        epoch.node.counters = self.counters.values
        epoch.node.relayed = self.relayed.entries
        epoch.node.control_fd = self.control_fd
        self.park()
        try:
            # What can fail comes first, and touches nothing but the new epoch; afterwards nothing fails any more.
            for i in range(epoch.node.n_subgroups):
                s = &epoch.node.subgroups[<uint32_t>i]
                if s.mine == NULL:
                    continue
                if self.thread is not None:
                    make_space_fd(s)
                s.claim_one = not w.batch_send
                self.apply_binding(epoch, s.topic_id, self.bindings.get(s.topic_id) or Binding())
                if old is not None and old.has_topic(s.topic_id):
                    check_resend(old.subgroup(s.topic_id), s)
            self.wait_also_for(epoch)
            for i in range(epoch.node.n_subgroups):
                s = &epoch.node.subgroups[<uint32_t>i]
                if s.mine == NULL:
                    continue
                binding = self.bindings.setdefault(s.topic_id, Binding())
                if old is not None and old.has_topic(s.topic_id):
                    before = old.subgroup(s.topic_id)
                    if before.my_sender >= 0:
                        self.counters.values[C_RESENT] += resend(before, s, binding.inboxes)
            if old is not None:
                for topic_id in old.by_topic:
                    before = old.subgroup(topic_id)
                    if before.my_sender >= 0 and (not epoch.has_topic(topic_id)
                                                  or epoch.subgroup(topic_id).my_sender < 0):
                        n = count_leftover(before)
                        if n:
                            unsent[topic_id] = n
            if old is not None and old.node.wedged:
                # The last columns of the old epoch are this node's echo: others wait for it, and nobody steps the old
                # epoch after this.
                step(&old.node, self.now_ns())
            self.take_over_fabric(old, epoch)
            self.epoch = epoch
            self.driver.node = &epoch.node
            self.counters.values[C_VIEW_ID] = epoch.epoch
            self.counters.values[C_VIEW_CHANGES] += 1
        finally:
            self.resume()
        if old is not None:
            for i in range(old.node.n_subgroups):
                event_ring(old.node.subgroups[<uint32_t>i].space_fd)   # who waits for a slot learns that it is over
            if self.past is not old:
                old.close()
        self.ring()
        return unsent

    cdef int wait_also_for(self, Epoch epoch) except -1:
        """The predicate thread waits for this fabric as well. Parked."""
        if epoch.fabric.wait_fd >= 0:
            if self.poller is None:
                poller = select.epoll()
                poller.register(self.bell_fd, select.EPOLLIN)
                self.poller = poller
                self.driver.wait_fd = poller.fileno()
            self.poller.register(epoch.fabric.wait_fd, select.EPOLLIN)
        return 0

    cdef int take_over_fabric(self, Epoch old, Epoch epoch) except -1:
        """What the predicate thread drives besides the new epoch: the old one's last posts, and a goodbye. Parked."""
        self.drop_past()
        if old is not None and old.fabric.wait_fd >= 0:
            old.fabric.goodbye()
            if old.fabric.drained:
                self.poller.unregister(old.fabric.wait_fd)
            else:
                self.past = old
                epoch.node.past = old.node.fabric
        return 0

    def tidy(self):
        """Gives back the memory of the last epoch, once its last posts have arrived; True if nothing is kept."""
        if self.past is None or not self.past.fabric.drained:
            return self.past is None
        self.park()
        try:
            if self.past is not None and self.past.fabric.drained:   # another may be the last one by now
                self.drop_past()
        finally:
            self.resume()
        return self.past is None

    cdef int drop_past(self) except -1:
        """Parked: the last epoch is over, whatever has arrived of it."""
        if self.past is not None:
            self.epoch.node.past = NULL
            self.poller.unregister(self.past.fabric.wait_fd)
            self.past.close()
            self.past = None
        return 0

    def cut(self, rank):
        """Nothing is exchanged with this member of the installed epoch any more: neither posts nor doorbells go to it.

        What it still writes can only land in this epoch's memory. No error where there is no such member or no epoch:
        suspicion comes from elsewhere and may be late.
        """
        with self.lock:
            if self.epoch is not None:
                (<Epoch>self.epoch).cut(rank)

    def wedge(self, ballot=1, *, open_claim_timeout_s=OPEN_CLAIM_TIMEOUT_S):
        """The epoch is over for this node: publish what was committed, freeze, set the column "wedged" to `ballot`.

        Afterwards nothing is claimed, sent, received or delivered in it. An open direct claim is waited for up to
        `open_claim_timeout_s` and then becomes a null. Once wedged, a later call changes nothing: the decision stands.
        """
        cdef Epoch epoch = self.installed()
        if ballot < 1:
            raise ValueError(f"ballot {ballot}: must be at least 1")
        if epoch.node.wedged:
            return
        close_claims(epoch)
        deadline = time.monotonic() + open_claim_timeout_s
        while claims_open(epoch) and time.monotonic() < deadline:
            time.sleep(0.0005)
        self.park()
        try:
            freeze(epoch)
            epoch.set("wedged", ballot)
        finally:
            self.resume()
        epoch.push()

    def deliver_to_trim(self, topic_id, trim):
        """After wedge(): delivers all messages below the trim (one count per sender) and nothing else.

        False while a keep-all reader has no room: call again. Unordered topics deliver whatever has arrived.
        ValueError where the trim is not one of this subgroup, or beyond what was received here.
        """
        cdef Epoch epoch = self.installed()
        cdef subgroup_t *s = epoch.subgroup(topic_id)
        if not epoch.node.wedged:
            raise ValueError("wedge first")
        if s.mine == NULL:
            return True
        self.park()
        try:
            if self.thread is not None:
                step(&epoch.node, self.now_ns())   # this node's echo goes out now: the others wait for it
            return deliver_trim(epoch, s, trim, self.now_ns())
        finally:
            self.resume()

    def take_undelivered(self, topic_id, trim):
        """After deliver_to_trim() returned False: takes what it could not deliver out of the slots, so that the view
        can change without waiting for a reader. Nothing below the trim is left in the epoch then.

        Returns [(payload, sender node id, sequence, source_ns, writer_id, relay), ...] in delivery order, to be
        appended to the log before the topic's delivery is released. At most one window of each sender; of one whose
        slot is damaged, what came before that.
        """
        cdef Epoch epoch = self.installed()
        if not epoch.node.wedged:
            raise ValueError("wedge first")
        self.park()
        try:
            return take_trim(epoch, epoch.subgroup(topic_id), trim)
        finally:
            self.resume()

    def leftover(self, Epoch epoch not None, topic_id):
        """Own messages (nulls not counted) that are committed in `epoch` and not below its trim."""
        return count_leftover(epoch.subgroup(topic_id))

    cdef Epoch installed(self):
        if self.epoch is None:
            raise ValueError("no view is installed")
        return self.epoch

    # ---- bindings ----

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
        # What comes before the epoch's own messages is in the log when their delivery begins: with the epoch, or when
        # it is held no longer. Until then persist() says nothing.
        if s.log != NULL and (self.epoch is not epoch or (s.held and not binding.held)):
            s.durable_before = s.log.count
        s.held = binding.held
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

    @contextlib.contextmanager
    def parked(self):
        """While in it the predicate thread stands still: for changes to what it reads."""
        self.park()
        try:
            yield
        finally:
            self.resume()
            self.ring()

    def bind_log(self, topic_id, DeliveryLog log):
        """Delivers the topic into `log` from now on (None: nowhere)."""
        with self.parked():
            binding = self.bindings.setdefault(topic_id, Binding())
            if binding.log is not log:
                binding.log, binding.durable = log, 0
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

    def hold_delivery(self, topic_id):
        """Delivers nothing of this topic until release_delivery: a joiner's history comes first."""
        with self.parked():
            self.bindings.setdefault(topic_id, Binding()).held = True
            self._rebind(topic_id)

    def release_delivery(self, topic_id):
        with self.parked():
            self.bindings.setdefault(topic_id, Binding()).held = False
            self._rebind(topic_id)

    def set_durable(self, topic_id, delivered_index, DeliveryLog log=None):
        """The journal has everything before this index of the delivery log on disk.

        `log`: the one that it read. A report of a log that the topic has no longer, because this node has left it
        meanwhile, is nobody's. None: the one it has.
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
        self.ring()

    def set_upcall(self, topic_id, function, context=0, *, batches=True, keep=None):
        """Delivers to a C function: void (*)(void *context, const delivery_t *messages, uint32_t n).

        `function` and `context` are addresses (0: none); `batches` False: one call per message (paper, section 3.5).
        It runs on the predicate thread with the payloads in place: it must be quick, never block, and keep nothing.
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

    # ---- direct claims ----

    def claim(self, topic_id, timeout_s=-1.0):
        """A DirectClaim: the next place in the order of this node's messages. To be committed soon, since all that the
        node sends in the topic afterwards waits for it. One that is dropped is given up; the end of the view makes a
        null of one that is still open.

        Raises ValueError (no sender there), WriteTimeout, Wedged (between two views: try again).
        """
        return open_claim(&self.driver, self, self.installed(), topic_id, timeout_s)

    def write(self, topic_id, data, timestamp_ns=0, timeout_s=-1.0):
        """Claims a slot of the own ring, fills it, commits it: one message of an embedded sender, without an inbox.

        Raises ValueError (no sender there, too large), WriteTimeout, Wedged (between two views: try again).
        """
        cdef const unsigned char[::1] source = data
        cdef uint64_t at = timestamp_ns
        cdef Epoch epoch = self.installed()
        cdef subgroup_t *s = epoch.subgroup(topic_id)
        if <uint64_t>source.shape[0] > s.size_max:   # before there is a claim, which would wait for it
            raise ValueError(f"a message of {source.shape[0]} bytes: this topic's size_max is {s.size_max} bytes")
        open_claim(&self.driver, self, epoch, topic_id, timeout_s).fill(source, at)

    def declare_silence(self, topic_id, rounds):
        """This sender will send nothing for so many rounds: nulls in advance, as one number (paper, section 3.3).

        Returns the index of its next message. Messages sent earlier than declared wait for their round.
        """
        cdef uint64_t following = silence(self.installed(), topic_id, rounds)
        self.ring()
        return following

    def __dealloc__(self):
        u32_store_release(&self.driver.stop, 1)
        for fd in (self.bell_fd, self.control_fd, self.resume_fd):
            if fd >= 0:
                c_close(<int>fd)
