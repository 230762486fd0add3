"""Reading a delivery log: the application's side.

The log is mapped read-only and shared by all readers of the topic on this host; each has a position of its own in a
page that only it writes. Reading never takes a lock and never makes a system call; only waiting for data does.

How it gets from one record to the next is in log_position.pyx, how it waits in log_waiting.pyx: here is what it gives
out.
"""
from libc.stdint cimport uint64_t

from spindle_core.atomics cimport fence_store_load, u64_load_relaxed, u64_store_relaxed, u64_store_release
from spindle_core.bell cimport bell_of, ring_once
from spindle_core.events cimport c_close, end_wake
from spindle_core.layout cimport (
    CURSOR_MAGIC,
    CURSOR_START_OFFSET,
    CACHE_LINE,
    LOG_DATA,
    LOG_LARGE,
    LOG_RING_OFFSET,
    align_up,
    cursor_page,
    cursor_start,
    large_entry,
    log_record,
    record_stride,
)
from spindle_core.keyed cimport Keyed, KeyedInfo, KeyTable, close_collection, give, settle
from spindle_core.memory cimport Mapping, forks
from spindle_core.message cimport MessageInfo, give_info, is_message_type, make_info, new_message

from spindle_core.ends import end_of

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize


cdef int check_info_type(type info_type, bint keyed=False) except -1:
    cdef type base = KeyedInfo if keyed else MessageInfo
    if not issubclass(info_type, base):
        raise TypeError(f"info_type {info_type.__name__}: must be a subclass of {base.__name__}")
    return 0


cdef class LogReader:
    """Reads a delivery log from a cursor. For one thread at a time. Takes ownership of mappings and descriptors.

    `bell` and `bell_fd` let a keep-all reader wake a node that waits for it; without them (a log without an engine)
    nobody is rung. `place`: (view id, sequence) where it stands in the order; with `skips` it has had everything before
    that from somewhere else, and drops such messages if the log still brings them. `table`: a copy of what is kept of
    each key of the topic, which is read first.

    opener: attribute; what gives the bytes of a large sample: id -> a descriptor, which becomes the reader's, -1 if the
    node has given them up, -2 if they went with it. Its errors propagate, and the sample is still the next one. Without
    it, and where the bytes are gone, such samples count as lost; but with `goes_on` the log ends where they went with
    the node: another node's may have them. read_on() says that none does.

    only_plain: attribute; True: take(), take_with() and take_block() go no further than the next message that has a
    tag, and skip_to_last() skips nothing while there is one. Only take_pairs() gives it out: what it is, or whether it
    counts at all, the layer above has to see by itself.
    """

    def __cinit__(self):
        self.bell_fd = -1

    def __init__(self, Mapping log not None, Mapping cursor not None, int data_fd, Mapping bell=None, int bell_fd=-1,
                 place=(0, 0), bint skips=False, Mapping table=None):
        self.data_end, self.bell_fd = data_fd, bell_fd  # owned, whatever comes
        self.data_end = end_of(data_fd)
        self.cursor = cursor
        self.bell = bell
        self.forks = forks
        if log.base == NULL or cursor.base == NULL or not cursor.writable or (bell is not None and bell.base == NULL):
            raise ValueError("a reader needs its cursor writable, and its log and the doorbell open")
        self.page = <cursor_page *>cursor.base
        if self.page.magic != CURSOR_MAGIC:
            raise ValueError("this mapping is not a cursor of this version")
        if bell is not None:
            self.node_bell = bell_of(bell)
        self.begin(log, <cursor_start *>(cursor.base + CURSOR_START_OFFSET), place, skips, table)

    cdef int usable(self) except -1:
        if self.forks != forks:
            self.refuse_child()
        if self.closed:
            raise ValueError("this reader is closed")
        if self.block is not None:
            raise ValueError("a batch is open: release it first")
        return 0

    cdef void publish_position(self) noexcept:
        if self.forks != forks:
            return               # the page is the parent's
        if self.following is not None:
            return               # of the log itself nothing has been read
        if self.copied and not self.page.table_read:
            u64_store_release(&self.page.table_read, 1)
        u64_store_relaxed(&self.page.index, self.index - self.copied)
        # SYNC POINT: read. Pairs with log_refresh_cursors(): we are done with everything before.
        u64_store_release(&self.page.position, self.position)
        if self.keep_all and self.node_bell != NULL:
            fence_store_load()
            if u64_load_relaxed(&self.header.blocked):
                ring_once(self.node_bell, self.bell_fd, &self.rung)

    def take(self, Py_ssize_t n, type payload_type=bytes, type info_type=MessageInfo, list before=None,
             list into=None):
        """Up to `n` messages, oldest first; [] when there is none. None is taken while there is something in `before`.

        into: the list that they are added to, which is returned: so who is interrupted knows what was taken.
        payload_type: bytes, or what message_type() made; then the info is an `info_type`, a subclass of MessageInfo.
        Raises TypeError for others.
        """
        cdef log_record *r
        cdef log_record record
        cdef uint64_t size, position, view_id, sequence
        cdef bint plain = payload_type is bytes
        cdef list out = [] if into is None else into
        cdef object payload
        cdef Mapping large
        cdef large_entry entry
        self.usable()
        if not plain and not is_message_type(payload_type):
            raise TypeError(f"payload_type {payload_type.__name__}: must be bytes or made by message_type()")
        check_info_type(info_type)
        while n > 0:
            r = self.peek(&size)
            if r == NULL or self.is_not_plain(r):
                break
            position, view_id, sequence = self.position, r.view_id, r.sequence
            large = None
            if r.kind == LOG_LARGE:
                record = r[0]
                large = self.open_large(r, &entry)
                if large is None:
                    continue
                if plain:
                    payload = PyBytes_FromStringAndSize(large.base, entry.size)
                else:
                    payload = new_message(payload_type, large.base, entry.size, &record, self.index, info_type)
            elif plain:
                payload = PyBytes_FromStringAndSize(<char *>r + sizeof(log_record), size)
            else:
                payload = new_message(payload_type, <char *>r + sizeof(log_record), size, r, self.index, info_type)
            if self.position != position or (large is None and not self.still_there(position)):
                if self.position == position:
                    self.overtaken()
                continue   # else making an object let the garbage collector run code, and that took this message
            if before is not None and len(before):
                break
            out.append(payload)
            self.taken(size, view_id, sequence)
            n -= 1
        self.publish_position()
        return out

    def take_pairs(self, Py_ssize_t n, type info_type=MessageInfo, bint in_place=False, into=None):
        """Up to `n` pairs (payload: bytes, info).

        in_place  the payload of a large sample is a read-only memoryview, valid for as long as somebody has it
        into      something with append(), by which they are given as well, as into take()'s
        """
        cdef log_record *r
        cdef log_record record
        cdef uint64_t size, position, view_id, sequence
        cdef list out = []
        cdef object payload, info
        cdef bint alone
        cdef Mapping large
        cdef large_entry entry
        self.usable()
        check_info_type(info_type)
        while n > 0:
            r = self.peek(&size)
            alone = r != NULL and r.kind == LOG_LARGE and self.entries
            if r == NULL or (alone and out):
                break
            position, view_id, sequence = self.position, r.view_id, r.sequence
            large = None
            if r.kind == LOG_LARGE and not alone:
                record = r[0]
                large = self.open_large(r, &entry)
                if large is None:
                    continue
                if in_place:
                    payload = memoryview(large)[:<Py_ssize_t>entry.size]
                else:
                    payload = PyBytes_FromStringAndSize(large.base, entry.size)
                info = make_info(info_type, &record, self.index)
            else:
                payload = PyBytes_FromStringAndSize(<char *>r + sizeof(log_record), size)
                info = make_info(info_type, r, self.index)
            if self.position != position or (large is None and not self.still_there(position)):
                if self.position == position:
                    self.overtaken()
                continue   # else as in take
            out.append((payload, info))
            if into is not None:
                into.append(out[len(out) - 1])
            self.taken(size, view_id, sequence)
            n = 0 if alone else n - 1
        self.publish_position()
        return out

    def take_with(self, Py_ssize_t n, decode, type info_type=MessageInfo, str info_attribute="sample_info",
                  KeyTable keys=None, learn=None, decode_large=None, list into=None, interrupts=None):
        """Up to `n` results of decode(view); the read-only view is valid during the call only. decode_large: called
        in its place for large samples; what it returns may use the view for as long as it likes.

        Each result gets its info as attribute unless `info_attribute` is None. An error of `decode` (or of setting
        the attribute, or BufferError where its result still uses the view) propagates; the messages before it are in
        the attribute `taken` of the exception, the one it failed on is skipped.

        into        as of take()
        interrupts  an error of decode() -> True if that says nothing of the message, as what a signal handler raises:
                    then it stays the next one, as with all that is no Exception, and there is no `taken`
        keys   of the topic; then `info_type` is a subclass of KeyedInfo
        learn  (payload: bytes, info, sample) -> Keyed, called for a message that is not settled, see keyed.pyx: before
               decode(), and `sample` is None, unless `keys` knows no places; its errors count as decode's
        """
        cdef log_record *r
        cdef log_record record
        cdef uint64_t size, length, position
        cdef list out = [] if into is None else into, opened = []
        cdef object view, sample, info
        cdef const char *payload
        cdef bytes copy = None
        cdef Mapping large
        cdef large_entry entry
        cdef Keyed keyed
        cdef Py_ssize_t at
        cdef bint stays
        self.usable()
        check_info_type(info_type, keys is not None)
        try:
            while n > 0:
                r = self.peek(&size)
                if r == NULL or self.is_not_plain(r):
                    break
                position = self.position
                record = r[0]
                info = make_info(info_type, &record, self.index)
                payload = <const char *>r + sizeof(log_record)
                length = size
                stays = False
                if record.kind == LOG_LARGE:
                    large = self.open_large(r, &entry)
                    if large is None:
                        continue
                    payload, length = large.base, entry.size
                    view = memoryview(large)[:<Py_ssize_t>length]
                    stays = decode_large is not None
                elif self.keep_all and not self.gone:
                    # A slice of a view of the mapping: whoever keeps a part of it keeps that mapped.
                    at = <char *>r - self.log.base + sizeof(log_record)
                    if self.viewed is not self.log:
                        self.log_view, self.viewed = memoryview(self.log).toreadonly(), self.log
                    view = self.log_view[at:at + <Py_ssize_t>size]
                else:
                    # It could be overwritten under decode(): give it a copy that has been checked.
                    copy = PyBytes_FromStringAndSize(payload, size)
                    view = memoryview(copy)
                    payload = PyBytes_AS_STRING(copy)
                    if not self.still_there(position):
                        self.overtaken()
                        continue
                try:
                    if keys is not None and keys.places is not None:
                        keyed = self.under_key(keys, learn, payload, length, &record, self.index, info_type)
                    if stays:
                        sample = decode_large(view)
                    else:
                        try:
                            sample = decode(view)
                        finally:
                            view.release()
                    if keys is not None:
                        if keys.places is None:
                            keyed = learn(None, info, sample)
                        (<KeyedInfo>info).given = give(keyed, opened)
                        (<KeyedInfo>info).place = (<KeyedInfo>info).given.count - 1
                    if info_attribute is not None:
                        give_info(sample, info_attribute, info)
                except BaseException as e:
                    if isinstance(e, Exception) and (interrupts is None or not interrupts(e)):
                        if self.position == position:
                            self.taken(size, record.view_id, record.sequence)
                        e.taken = out
                    self.publish_position()
                    raise
                if self.position != position:
                    continue   # decode() let another thread run, and that took this message
                out.append(sample)
                self.taken(size, record.view_id, record.sequence)
                n -= 1
        finally:
            close_collection(opened)
        self.publish_position()
        return out

    cdef Keyed under_key(self, KeyTable keys, object learn, const char *payload, uint64_t size, const log_record *r,
                         uint64_t index, type info_type):
        """What is under the key of a message, after it has come."""
        cdef Keyed keyed = keys.find_settled(payload, size, r)
        if keyed is None:
            keyed = learn(PyBytes_FromStringAndSize(payload, size), make_info(info_type, r, index), None)
            settle(keyed, r)
        return keyed

    def take_block(self, Py_ssize_t n, KeyTable keys=None, learn=None, type info_type=MessageInfo):
        """A run of up to `n` equal-sized messages in place, or None when there is none. Release it before reading on. A
        large sample comes alone, in memory that never changes.

        For a reader that doesn't keep all, the memory may be overwritten while the block is held: check `intact`.
        keys, learn: as in take_with(), for readers that keep all; the block ends before a message that learn() fails
        on, and its error propagates if that is the first one.
        """
        cdef log_record *r
        cdef uint64_t size = 0
        cdef Block b
        cdef log_record record
        cdef Mapping large = None
        cdef large_entry entry
        self.usable()
        check_info_type(info_type, keys is not None)
        if n <= 0:
            return None
        while True:
            r = self.peek(&size)
            if r == NULL or self.is_not_plain(r):
                return None
            record = r[0]
            if record.kind == LOG_LARGE:
                large = self.open_large(r, &entry)
                if large is not None:
                    break
                self.usable()    # its opener may have let another thread close it
                continue
            if self.still_there(self.position):
                break
            self.overtaken()
        b = Block.__new__(Block)
        b.memory = self.log
        b.reader = self
        b.info_type = info_type
        b.payload_size = size
        b.stride = record_stride(size)
        b.offset = LOG_RING_OFFSET + self.offset + sizeof(log_record)
        b.first_position = self.position
        b.first_index = self.index
        b.end_position = self.position
        b.end_offset = self.offset
        if large is not None:
            return self.block_of_large(b, large, &entry, &record, keys, learn)
        while b.count < <uint64_t>n:
            b.count += 1
            b.end_position += b.stride
            b.end_offset += b.stride
            if b.end_position >= self.tail:
                self.tail = self.last_tail()   # what has come since: the log goes on in place while we have this
            if b.end_position >= self.tail or b.stride > self.capacity - b.end_offset:
                break
            r = <log_record *>(self.ring + b.end_offset)
            if r.kind != LOG_DATA or r.size != size or r.position != b.end_position or (self.only_plain and r.tag):
                break
        if keys is not None:
            self.fill_in(b, keys, learn)
            self.usable()        # learn() may have let another thread close it
        r = <log_record *>(self.ring + b.end_offset - b.stride)
        b.last_view, b.last_sequence = r.view_id, r.sequence
        if not self.still_there(self.position):   # else that place may be another message's
            b.last_view, b.last_sequence = self.next_view, self.next_sequence
        b.open = True
        self.block = b
        return b

    cdef Block block_of_large(self, Block b, Mapping large, const large_entry *entry, const log_record *r,
                              KeyTable keys, object learn):
        """The large sample that is next, as a block of one."""
        cdef list opened = []
        b.memory = large
        b.record = r[0]
        b.offset, b.count, b.payload_size, b.stride = 0, 1, entry.size, align_up(entry.size, CACHE_LINE)
        b.end_position += record_stride(r.size)
        b.end_offset += record_stride(r.size)
        b.last_view, b.last_sequence = r.view_id, r.sequence
        self.block = b           # nobody takes anything while learn() runs
        try:
            if keys is not None:
                b.given = [give(self.under_key(keys, learn, large.base, entry.size, &b.record, b.first_index,
                                               b.info_type), opened)]
            b.open = True
        finally:
            close_collection(opened)
            if not b.open:
                self.block = None
        return b

    cdef int fill_in(self, Block b, KeyTable keys, object learn) except -1:
        """Finds the keys of a block's messages."""
        cdef list opened = [], given = []
        cdef uint64_t k
        cdef log_record *r
        cdef Keyed keyed
        if not self.keep_all or self.gone:
            raise ValueError("keys can't be found in place where messages may be overwritten")
        b.end_position, b.end_offset = self.position, self.offset
        self.block = b           # nobody takes anything while learn() runs
        try:
            for k in range(b.count):
                r = <log_record *>(self.ring + b.end_offset)
                try:
                    keyed = self.under_key(keys, learn, <const char *>r + sizeof(log_record), b.payload_size, r,
                                           b.first_index + k, b.info_type)
                except Exception:
                    if k == 0:
                        raise
                    b.count = k
                    break
                given.append(give(keyed, opened))
                b.end_position += b.stride
                b.end_offset += b.stride
        finally:
            self.block = None
            close_collection(opened)
        b.given = given
        return 0

    def skip_to_last(self, uint64_t depth):
        """KEEP_LAST(depth): skips all but the newest `depth` messages; returns how many were skipped (not `lost`)."""
        cdef uint64_t count, skipped
        self.usable()
        self.look()
        count = self.delivered()
        if self.only_plain and self.tagged_ahead:
            return 0
        skipped = self.skip_until(count - depth if count > depth else 0)
        self.publish_position()
        return skipped

    cdef bint is_not_plain(self, const log_record *r) noexcept:
        """True if this reader must not go past `r` without looking. What an overwritten record says doesn't count."""
        return self.only_plain and r.tag != 0 and self.still_there(self.position)

    @property
    def tagged_ahead(self):
        """True if one of the messages that are there and not taken has a tag, or had one and was overwritten since. The
        position stays as it is; each message is looked at once, however often this is asked."""
        cdef uint64_t position = self.position, offset = self.offset, index = self.index, lost = self.lost, size
        cdef uint64_t tail = self.tail
        cdef bint skips = self.skips
        cdef log_record *r
        if self.log.base == NULL or self.closed or self.block is not None:
            return False
        if self.following is not None:
            return True          # a copy is read one by one: it isn't worth a look at two logs
        if self.scan_found and self.scanned_index >= self.index:
            return True
        if self.scanned_position > self.position:
            self.position, self.offset, self.index = self.scanned_position, self.scanned_offset, self.scanned_index
        self.scan_found = False
        try:
            while not self.scan_found:
                r = self.peek(&size)
                if r == NULL:
                    break
                if r.tag and self.still_there(self.position):
                    self.scan_found = True
                else:
                    self.advance(size)
        finally:
            self.scanned_position, self.scanned_offset, self.scanned_index = self.position, self.offset, self.index
            self.position, self.offset, self.index, self.lost = position, offset, index, lost
            # Not the tail either: past the one it knows, the reader looks whether the log has gone back to its start.
            self.tail, self.skips = tail, skips
        return self.scan_found

    def tagged_within(self, uint64_t n):
        """True if one of the next `n` messages is there and has a tag, or had one and was overwritten since."""
        return self.tagged_ahead and (self.following is not None or self.scanned_index - self.index < n)

    @property
    def meets_tagged(self):
        """True if the next message is there and has a tag."""
        cdef log_record *r
        cdef uint64_t size
        if self.log.base == NULL or self.closed or self.block is not None:
            return False
        r = self.peek(&size)
        return r != NULL and r.tag != 0 and self.still_there(self.position)

    @property
    def said_ns(self):
        """The time that the topic's order has said last, maybe behind the messages that were taken, UTC; 0: none."""
        if self.log.base == NULL or self.closed:
            return 0
        return u64_load_relaxed(&self.proper().said_ns)

    @property
    def position_index(self):
        """Index of the next message to be taken: where a reader that attaches again goes on."""
        return self.index

    def freeze(self):
        """Reads nothing any more beyond what the log holds now; returns the place in the order, (view id, sequence),
        that comes after all of it: where to go on in another node's log.

        For a log whose node is gone: that may have been killed at any moment, or append for a moment yet.
        """
        cdef uint64_t view_id = self.next_view, sequence = self.next_sequence
        if self.closed:
            return view_id, sequence
        self.stop(&view_id, &sequence)
        return view_id, sequence

    def close(self):
        """Idempotent. Wakes a thread that waits."""
        if self.closed:
            return
        if self.block is not None:
            self.block.release()
        self.closed = True
        self.engine, self.driver = None, NULL
        if self.forks == forks:
            end_wake(self.data_end)

    def __dealloc__(self):
        # Not in close(): another thread may still ring.
        if self.bell_fd >= 0:
            c_close(self.bell_fd)


cdef class Block:
    """A run of equal-sized messages in the log, in place; or one large sample, in memory of its own.

    Message i's payload is `payload_size` bytes at `buffer[offset + i * stride:]`. Valid until release(); of a large
    sample for as long as somebody has a view of it (`stays`).
    """

    def __init__(self):
        raise TypeError("use LogReader.take_block")

    @property
    def buffer(self):
        """The whole mapping in which the payloads lie, read-only."""
        return memoryview(self.memory)

    @property
    def stays(self):
        """True where the memory stays as it is for as long as somebody has a view of it."""
        return self.memory is not self.reader.log

    @property
    def intact(self):
        """False once the log has overtaken the block, or it was released: its contents may have changed."""
        return self.open and (self.memory is not self.reader.log or self.reader.still_there(self.first_position))

    def info(self, uint64_t i, type info_type=MessageInfo):
        """The info of message i; with keys, of the type that the block was taken with. IndexError, or ValueError after
        release."""
        cdef KeyedInfo info
        cdef uint64_t k
        cdef const log_record *r
        if not self.open:
            raise ValueError("this batch has been released")
        if i >= self.count:
            raise IndexError(i)
        if self.memory is self.reader.log:
            r = <log_record *>(self.memory.base + self.offset + i * self.stride - sizeof(log_record))
        else:
            r = &self.record
        if self.given is None:
            return make_info(info_type, r, self.first_index + i)
        info = make_info(self.info_type, r, self.first_index + i)
        info.given = self.given[i]
        for k in range(i):
            info.place += self.given[k] is info.given
        return info

    def release(self):
        """Moves the reader behind the block; its memory can be used again. Idempotent."""
        cdef LogReader reader = self.reader
        if not self.open:
            return
        self.open = False
        reader.block = None
        reader.index = self.first_index + self.count
        reader.position = self.end_position
        reader.offset = self.end_offset
        reader.next_view, reader.next_sequence = self.last_view, self.last_sequence + 1
        reader.large = None
        reader.publish_position()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.release()

    def __len__(self):
        return self.count
