"""The node's core: epochs, what is bound to their topics (`bindings`), and who drives their predicates (`driving`).

Everything that outlives a view is bound to a topic number, and is carried over by install().

Rules for the caller: new_epoch, attach_peer for every other rank, install; wedge, deliver_to_trim for every topic
until True, install of the next. One thread at a time uses an Engine (a lock sees to it).
"""
import time
from select import EPOLLIN

from libc.stdint cimport uint32_t, uint64_t

from spindle_core.atomics cimport u64_store_release
from spindle_core.bindings cimport Bindings
from spindle_core.changeover cimport (
    check_resend, claims_open, close_claims, count_leftover, deliver_trim, freeze, is_idle, resend, take_trim)
from spindle_core.counters cimport C_RESENT, C_VIEW_CHANGES, C_VIEW_ID
from spindle_core.delivery cimport DeliveryLog
from spindle_core.direct cimport open_claim, silence
from spindle_core.hot_path cimport whole_pass
from spindle_core.epoch cimport Epoch
from spindle_core.events cimport end_ring, event_ring
from spindle_core.inbox cimport Inbox
from spindle_core.larges cimport Larges
from spindle_core.relayed cimport RelayedTable
from spindle_core.state cimport LEVEL_UNORDERED, subgroup_t

from spindle_core.bindings import Binding
from spindle_core.epoch import SubgroupSpec  # no-cython-lint: part of this module's surface
from spindle_core.switches import Switches  # no-cython-lint: part of this module's surface

DRAIN_S = 1.0
OPEN_CLAIM_TIMEOUT_S = 1.0   # how long a wedge waits for a claimed slot to be filled before it becomes a null


cdef class Engine(Bindings):
    """One node's core. `busy_poll_us`: how long the predicate thread looks for work before it blocks."""

    def __cinit__(self):
        self.relayed = RelayedTable()
        self.larges = Larges()

    # ---- the end ----

    def stop(self, *, drain_s=DRAIN_S, disconnect=True):
        """Ends the predicate thread for good; applications see that the node has stopped. Idempotent.

        `drain_s`: how long what was posted may take to reach the peers. Peers of an epoch that is over see an orderly
        end; peers of one that goes on notice that a member has gone. disconnect=False: the caller disconnects later.
        """
        with self.lock:
            if self.stopped:
                return
            self.stopped = True
            self.end_thread()
            self.say_last(drain_s)
            if disconnect:
                self.disconnect()
        u64_store_release(&self.driver.bell.stopped, 1)
        for binding in self.bindings.values():
            for inbox in binding.inboxes:
                end_ring((<Inbox>inbox).ring_end)
            if binding.log is not None:
                binding.log.stop()

    def disconnect(self):
        """Closes the connections of an engine that was stopped. Idempotent."""
        cdef Epoch epoch
        for epoch in (self.past, self.epoch):
            if epoch is not None:
                epoch.fabric.close()

    cdef int say_last(self, drain_s) except -1:
        """After the thread has ended: sends what is still to be sent."""
        cdef Epoch epoch
        cdef double until = time.monotonic() + drain_s
        cdef list epochs = [one for one in (self.past, self.epoch) if one is not None]
        if self.epoch is not None and (<Epoch>self.epoch).node.wedged:
            whole_pass(&(<Epoch>self.epoch).node, self.now_ns())    # a leaver's echo: the others wait for it
            (<Epoch>self.epoch).fabric.goodbye()
        while not all([epoch.drain() for epoch in epochs]) and time.monotonic() < until:
            time.sleep(0.0005)
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
        epoch.node.skip_idle = w.skip_idle
        epoch.node.exchange_first = w.exchange_first
        epoch.node.counters = self.counters.values
        epoch.node.relayed = self.relayed.entries
        epoch.node.larges = self.larges.pointer()
        epoch.node.control_fd = self.control_fd
        self.park()
        try:
            # What can fail comes first, and touches nothing but the new epoch; afterwards nothing fails any more.
            for i in range(epoch.node.n_subgroups):
                s = &epoch.node.subgroups[<uint32_t>i]
                if s.mine == NULL:
                    continue
                s.claim_one = not w.batch_send
                self.apply_binding(epoch, s.topic_id, self.bindings.get(s.topic_id) or Binding())
                if old is not None and old.has_topic(s.topic_id):
                    check_resend(old.subgroup(s.topic_id), s)
            self.open_doors(epoch)
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
                whole_pass(&old.node, self.now_ns())
            self.take_over_fabric(old, epoch)
            self.larges.forget_wants()       # of the epoch that is over; what is missed in this one is wanted anew
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
            self.make_poller()
            self.poller.register(epoch.fabric.wait_fd, EPOLLIN)
        return 0

    cdef int take_over_fabric(self, Epoch old, Epoch epoch) except -1:
        """Has the predicate thread drive the old epoch's fabric on, for its last posts and a goodbye. Parked."""
        self.drop_past()
        epoch.fabric.begin()
        if old is not None and old.fabric.wait_fd >= 0:
            old.fabric.goodbye(epoch.fabric)
            if old.fabric.drained:
                self.poller.unregister(old.fabric.wait_fd)
            else:
                self.past = old
                epoch.node.past = old.node.fabric
        return 0

    def tidy(self):
        """Gives back the memory of earlier epochs, once nobody writes it any more; True if nothing is kept."""
        cdef bint kept = self.epoch is not None and (<Epoch>self.epoch).fabric.kept
        if not kept and (self.past is None or not self.past.fabric.drained):
            return self.past is None
        self.park()
        try:
            if self.past is not None and self.past.fabric.drained:   # `past` may be another epoch by now
                self.drop_past()
            if self.epoch is not None:
                kept = not (<Epoch>self.epoch).fabric.tidy()
        finally:
            self.resume()
        self.ring()              # tidying may have taken what a sleeper would have been woken by
        return self.past is None and not kept

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
            whole_pass(&epoch.node, self.now_ns())   # this node's echo goes out now: the others wait for it
            return deliver_trim(epoch, s, trim, self.now_ns())
        finally:
            self.resume()

    def deliver_trims(self, trims):
        """deliver_to_trim() for all topics in one parking; returns the ids of those where it is False.

        `trims`: {topic id: trim}, also of topics that this node is no member of. A topic that is not named keeps
        nothing of this epoch, and is not even visited if nothing of it has come, as is the case with most.
        """
        cdef Epoch epoch = self.installed()
        cdef subgroup_t *s
        cdef list undone = []
        cdef uint32_t i
        if not epoch.node.wedged:
            raise ValueError("wedge first")
        self.park()
        try:
            whole_pass(&epoch.node, self.now_ns())   # this node's echo goes out now: the others wait for it
            for i in range(epoch.node.n_subgroups):
                s = &epoch.node.subgroups[i]
                if s.mine == NULL:
                    continue
                if is_idle(s) and s.level != LEVEL_UNORDERED and s.topic_id not in trims:
                    continue
                trim = trims.get(s.topic_id) or (0,) * s.n_senders
                if not deliver_trim(epoch, s, trim, self.now_ns()):
                    undone.append(s.topic_id)
        finally:
            self.resume()
        return undone

    def take_undelivered(self, topic_id, trim):
        """After deliver_to_trim() returned False: takes what it could not deliver out of the slots, so that the view
        can change without waiting for a reader. Nothing below the trim is left in the epoch then.

        Returns [(payload, sender node id, sequence, source_ns, writer_id, relay, tag, key, large), ...] in delivery
        order, to be appended to the log before the topic's delivery is released. Of a large sample the payload is its
        entry; the caller has one use() of it, to be taken back by Larges.unuse() when it is appended. At most one
        window of each sender; of a sender with a damaged slot, only what came before that slot. A trim without counts
        keeps nothing.
        """
        cdef Epoch epoch = self.installed()
        cdef subgroup_t *s = epoch.subgroup(topic_id)
        if not epoch.node.wedged:
            raise ValueError("wedge first")
        self.park()
        try:
            return take_trim(epoch, s, trim or (0,) * s.n_senders)
        finally:
            self.resume()

    def leftover(self, Epoch epoch not None, topic_id):
        """Own messages (nulls not counted) that are committed in `epoch` and not below its trim."""
        return count_leftover(epoch.subgroup(topic_id))

    cdef Epoch installed(self):
        if self.epoch is None:
            raise ValueError("no view is installed")
        return self.epoch

    # ---- large samples ----

    def add_large(self, uint64_t id):
        """This node has the bytes of a large sample from now on, and goes on with what waits for them. False where as
        many are there as there may be."""
        with self.parked():      # afterwards the thread looks at every topic
            return self.larges.add(id)

    def hand_over_large(self, Inbox inbox not None, uint64_t token, uint64_t id, bytes entry not None):
        """A writer's large sample, which it names in a slot by `token` (not 0); `entry` is what stands in the order.
        False where LARGES_OF_INBOX wait in its inbox, or as many are at the node as there may be."""
        with self.parked():
            return self.larges.add(id) and inbox.take_charge(token, entry)

    def sweep_larges(self):
        """Logs that keep no history give up the large samples that all their readers have taken."""
        cdef DeliveryLog log
        with self.parked():
            for binding in self.bindings.values():
                if binding.log is not None:
                    log = binding.log
                    log.sweep_larges()

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
        if <uint64_t>source.shape[0] > s.size_max:   # checked before a claim is made: the group would wait for that
            raise ValueError(f"a message of {source.shape[0]} bytes: this topic's size_max is {s.size_max} bytes")
        open_claim(&self.driver, self, epoch, topic_id, timeout_s).fill(source, at)

    def declare_silence(self, topic_id, rounds):
        """This sender will send nothing for so many rounds: nulls in advance, as one number (paper, section 3.3).

        Returns the index of its next message. Messages sent earlier than declared wait for their round.
        """
        cdef uint64_t following = silence(self.installed(), topic_id, rounds)
        self.ring()
        return following
