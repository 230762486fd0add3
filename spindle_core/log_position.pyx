"""Where a reader stands in a delivery log, and the way from one record to the next.

Rules: nothing is believed that could have been overwritten while it was copied (still_there() follows every copy). A
reader that keeps all is never overtaken; any other goes on with the oldest record there is, and what that skips is
`lost`.
"""
from libc.stdint cimport uint64_t

from spindle_core.atomics cimport fence_load_load, u32_load_relaxed, u64_load_acquire, u64_load_relaxed
from spindle_core.events cimport poll
from spindle_core.layout cimport (
    CACHE_LINE,
    LOG_DATA,
    LOG_JUMP,
    LOG_LARGE,
    LOG_MAGIC,
    LOG_RING_OFFSET,
    cursor_start,
    large_entry,
    log_header,
    log_record,
    record_stride,
)
from spindle_core.memory cimport Mapping

from spindle_core.errors import CoreError

cdef int LOOKS_MAX = 1000            # at a guard that is changing, before giving the core away
cdef int UNSETTLED_MAX_MS = 1000
cdef int WENT = -2                   # an opener's answer: the bytes of a large sample went with their node


cdef class LogPosition:
    """The base of LogReader: where it stands; see the module."""

    cdef int begin(self, Mapping log, const cursor_start *start, object place, bint skips,
                   Mapping table=None) except -1:
        """Starts where the node has placed the cursor; with `table`, a copy of what is kept of each key, in that.
        Raises ValueError for what is no log, or no place in one."""
        self.enter(log)
        self.position = start.position
        self.offset = start.offset
        self.index = start.index
        self.keep_all = start.keep_all
        self.tail = self.position
        self.next_view, self.next_sequence = place
        self.skips = skips
        if self.offset > self.capacity or self.offset % CACHE_LINE or self.capacity % CACHE_LINE:
            raise ValueError("the cursor doesn't point to a record: the node has to place it first")
        if table is not None:
            self.enter(table)
            self.following, self.following_position, self.following_offset = log, self.position, self.offset
            self.position = self.offset = self.tail = 0
            self.copied = self.header.count
            self.following_index = self.index + self.copied
            self.behind = self.header.behind_view, self.header.behind_sequence
            if not skips:
                self.lost = self.header.given_up
        return 0

    cdef int enter(self, Mapping log) except -1:
        """Reads in this mapping from now on."""
        cdef log_header *header = <log_header *>log.base
        if header == NULL or header.magic != LOG_MAGIC:
            raise ValueError("this mapping is not a delivery log of this version")
        if log.size < LOG_RING_OFFSET or not CACHE_LINE <= header.capacity <= log.size - LOG_RING_OFFSET:
            raise ValueError("the log is smaller than it says")
        self.log = log
        self.header = header
        self.capacity = header.capacity
        self.ring = log.base + LOG_RING_OFFSET
        return 0

    cdef void turn_to_following(self) noexcept:
        """The copy has been read: on to the log. That may still have messages that the copy stands for."""
        self.log, self.following = self.following, None
        self.header = <log_header *>self.log.base
        self.capacity = self.header.capacity
        self.ring = self.log.base + LOG_RING_OFFSET
        self.position = self.tail = self.following_position
        self.offset = self.following_offset
        if (self.next_view, self.next_sequence) < self.behind:
            self.next_view, self.next_sequence = self.behind
        self.skips = True

    cdef log_header *proper(self) noexcept:
        """Of the log itself, also while its copy is being read."""
        return self.header if self.following is None else <log_header *>self.following.base

    cdef uint64_t delivered(self) noexcept:
        """Messages that are there, those that were read included, as this reader counts them."""
        return self.frozen_count if self.frozen else u64_load_acquire(&self.proper().count) + self.copied

    cdef uint64_t last_tail(self) noexcept:
        """How far the log has got, or had got when it was frozen for this reader."""
        if self.following is not None:
            if self.position < self.header.tail:
                return self.header.tail
            self.turn_to_following()
        return self.frozen_tail if self.frozen else u64_load_acquire(&self.header.tail)

    cdef bint look(self) noexcept:
        """Looks how far the log has got; True if there is something to read."""
        # SYNC POINT: deliver. Pairs with log_publish(): records are whole before the tail.
        self.tail = self.last_tail()
        if self.position >= self.tail:
            return False
        # SYNC POINT: return. Pairs with return_to_hot(): we had everything when the log went back to its start.
        if u64_load_relaxed(&self.header.hot_position) == self.position:
            self.offset = 0
        return True

    cdef log_record *peek(self, uint64_t *size) except? NULL:
        """The next record and its payload's size, of a large sample its entry's; NULL when everything delivered
        so far has been read.

        A record that isn't what its predecessor promises has been overwritten: then the oldest one is next. What is
        copied from it must be followed by a look at still_there().
        """
        cdef log_record *r
        cdef bint before
        while True:
            if self.position >= self.tail and not self.look():
                return NULL
            if self.offset >= self.capacity:
                self.offset = 0
            r = <log_record *>(self.ring + self.offset)
            size[0] = u32_load_relaxed(&r.size)   # once: it may change under us
            if r.position == self.position:
                if (r.kind == LOG_DATA or r.kind == LOG_LARGE) and (
                        size[0] <= self.capacity - self.offset - sizeof(log_record)):
                    if not self.skips:
                        return r
                    before = r.view_id < self.next_view or (
                        r.view_id == self.next_view and r.sequence < self.next_sequence)
                    if self.still_there(self.position):
                        if not before:
                            self.skips = False
                            return r
                        self.advance(size[0])
                        continue
                if r.kind == LOG_JUMP and self.offset and self.still_there(self.position):
                    self.offset = 0
                    continue
            self.overtaken()

    cdef bint still_there(self, uint64_t position) noexcept:
        """False if the record copied from `position` may have been overwritten meanwhile."""
        if self.keep_all and not self.gone:
            return True   # a node that is gone may have gone on without us, if only for a moment
        # SYNC POINT: overtake. Pairs with publish_oldest(): it is raised before anything behind it is overwritten.
        fence_load_load()
        return u64_load_acquire(&self.header.oldest_position) <= position

    cdef int overtaken(self) except -1:
        """Goes on with the oldest record there is, and counts what that skips."""
        cdef log_header *h = self.header
        cdef uint64_t version, position, offset, index
        cdef int looks = 0
        # The loads that showed that we were overtaken come before the loads of the oldest record.
        fence_load_load()
        while True:
            version = u64_load_acquire(&h.version)
            position = u64_load_relaxed(&h.oldest_position)
            offset = u64_load_relaxed(&h.oldest_offset)
            index = u64_load_relaxed(&h.oldest_index)
            fence_load_load()
            if not version & 1 and u64_load_relaxed(&h.version) == version:
                break
            looks += 1
            if looks > LOOKS_MAX:
                # The node changes it within nanoseconds, unless it is kept from running, or was killed just there.
                if looks > LOOKS_MAX + UNSETTLED_MAX_MS:
                    raise CoreError(f"the delivery log has been changing for {UNSETTLED_MAX_MS} ms: its node has died")
                with nogil:
                    poll(NULL, 0, 1)
        if position <= self.position or offset > self.capacity or offset % CACHE_LINE:
            raise CoreError("the delivery log is damaged: a record isn't where its predecessor says; restart the"
                            " daemon")
        index += self.copied
        self.lost += index - self.index
        self.position = position
        self.offset = offset
        self.index = index
        return 0

    cdef void advance(self, uint64_t size) noexcept:
        self.position += record_stride(size)
        self.offset += record_stride(size)
        self.index += 1

    cdef void taken(self, uint64_t size, uint64_t view_id, uint64_t sequence) noexcept:
        self.next_view = view_id
        self.next_sequence = sequence + 1
        self.advance(size)
        if self.large is not None:
            self.large = None    # its memory goes with the last who uses it

    cdef Mapping open_large(self, const log_record *r, large_entry *entry):
        """The bytes of the large sample that is next, and its entry. None if it is to be looked for again: it was lost,
        overwritten, or taken by another thread meanwhile."""
        cdef uint64_t position = self.position, size = sizeof(large_entry), view_id = r.view_id, sequence = r.sequence
        cdef Mapping found = self.large
        entry[0] = (<const large_entry *>(<const char *>r + sizeof(log_record)))[0]
        if not self.still_there(position):
            self.overtaken()
            return None
        if found is None or self.large_id != entry.id:
            found = None
            fd = self.opener(entry.id) if self.opener is not None else -1
            if fd >= 0:
                found = Mapping.attach(fd)
                if found.size < entry.size:
                    found = None     # its sender lied about it: as if it had never come
            if self.position != position:
                return None
            if fd == WENT and self.goes_on and self.following is None and not self.frozen:
                self.stop(&view_id, &sequence)
                return None
            if self.frozen and self.following is None and position >= self.frozen_tail:
                return None          # frozen meanwhile: the next node's log gives it, whether it was opened or not
            if found is None:
                self.lost += 1
                self.taken(size, view_id, sequence)
                return None
            self.large, self.large_id = found, entry.id
        return found

    cdef int stop(self, uint64_t *view_id, uint64_t *sequence) except -1:
        """Nothing any more beyond what the log holds now, nor from the first large sample on that its node has not
        handed out: its bytes went with it. Gives the place in the order that comes after all that is left."""
        if not self.frozen:
            self.gone = True
            self.ended_tail = u64_load_acquire(&self.proper().tail)
            self.frozen_tail = self.ended_tail
            self.frozen = True
            if self.following is None:
                self.frozen_tail = self.first_large()
                self.tail = min(self.tail, self.frozen_tail)   # more had been seen, and would be read
        self.find_end(&self.frozen_count, view_id, sequence)
        return 0

    cdef uint64_t first_large(self) except? 0:
        """Where the first large sample lies that has not been taken and not been opened; the end if there is none. The
        position stays as it is. Not while a copy of a table is being read."""
        cdef uint64_t position = self.position, offset = self.offset, index = self.index, lost = self.lost
        cdef uint64_t tail = self.tail, size = 0, found
        cdef bint skips = self.skips
        cdef log_record *r
        try:
            while True:
                r = self.peek(&size)
                if r == NULL:
                    return self.tail
                found = self.position
                if r.kind == LOG_LARGE and (
                        self.large is None
                        or (<const large_entry *>(<const char *>r + sizeof(log_record))).id != self.large_id):
                    return found
                self.advance(size)
        finally:
            self.position, self.offset, self.index, self.lost, self.tail = position, offset, index, lost, tail
            self.skips = skips

    cdef uint64_t skip_until(self, uint64_t target) except? 0:
        """Goes on to the message with index `target`, or to the end; returns how many messages that skips."""
        cdef uint64_t view_id, sequence, size = 0, skipped = 0
        cdef log_record *r
        while self.index < target:
            r = self.peek(&size)
            if r == NULL or self.index >= target:
                break            # the second: peek() was overtaken, and has gone on behind the target
            view_id, sequence = r.view_id, r.sequence
            if not self.still_there(self.position):
                self.overtaken()
                continue
            self.taken(size, view_id, sequence)
            skipped += 1
        return skipped

    cdef int find_end(self, uint64_t *count, uint64_t *view_id, uint64_t *sequence) except -1:
        """How many messages there are up to the end, and the place in the order that comes after all of them. The
        position stays as it is."""
        cdef uint64_t position = self.position, offset = self.offset, index = self.index, lost = self.lost
        cdef uint64_t next_view = self.next_view, next_sequence = self.next_sequence, tail = self.tail
        cdef bint skips = self.skips
        cdef Mapping table = None
        if self.following is not None:
            table = self.log
            self.index = self.following_index
            self.turn_to_following()
        try:
            self.skip_until(<uint64_t>-1)
            count[0], view_id[0], sequence[0] = self.index, self.next_view, self.next_sequence
        finally:
            if table is not None:
                self.following = self.log
                self.enter(table)
            self.position, self.offset, self.index, self.lost, self.tail = position, offset, index, lost, tail
            self.next_view, self.next_sequence, self.skips = next_view, next_sequence, skips
        return 0
