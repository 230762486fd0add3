"""The fabric's face for Python: for those who set one up, tests and tools.

Subclasses fill in `table`; the predicate thread uses the table, never these methods.
"""
from libc.stdint cimport uint32_t, uint64_t


cdef class Fabric:
    """Access to the memory of `n_peers` members (this one, `rank`, included) of one epoch."""

    def __cinit__(self, *_, **__):
        self.table.range_cost = self.table.push_bytes = <uint64_t>-1     # posts are never split

    def reserve(self, posts, lanes):
        """Before anybody is connected: how many posts may wait for one peer, and how many lanes they have."""

    cdef int check_peer(self, peer) except -1:
        if not 0 <= peer < self.n_peers or peer == self.rank:
            raise ValueError(f"peer {peer}: must be a rank below {self.n_peers} other than the own one, {self.rank}")
        return 0

    @property
    def wait_fd(self):
        """What is readable when enter() has something to do; -1 where the doorbell tells everything."""
        return -1

    @property
    def copies(self):
        """Some peers have a copy of my row: what they shall see of it must be posted."""
        return self.wait_fd >= 0

    def begin(self):
        """The epoch is installed from now on. While nobody drives it, or the one before."""

    def goodbye(self, successor=None):
        """Nothing is posted any more: peers that notice the end of a connection are told that it is an orderly one.
        `successor`: the fabric of the next epoch, which may go on with some connections."""

    def failures(self):
        """{rank: why the connection to it broke}; never of those that were cut, nor after a goodbye."""
        return {}

    @property
    def kept(self):
        """Something of earlier epochs is kept still: tidy() is to be called."""
        return False

    def tidy(self):
        """Gives back what nobody uses any more of earlier epochs; True if nothing is kept. While nobody drives it."""
        return True

    def close(self):
        """Ends all connections that no other epoch has. Not while somebody drives it. Idempotent."""

    @property
    def drained(self):
        """All that was posted has arrived, or its peer is cut."""
        return True

    def statistics(self):
        """Frames, bytes and system calls so far, of a fabric that has any."""
        return {}

    def make_row(self, str name, size):
        """Memory for this member's row, as this fabric needs it."""
        raise NotImplementedError

    def post_writes(self, ranges, bint ring=True, uint32_t flags=0):
        """Posts [(peer, offset, length), ...] of the own row as one list; returns how many doorbells were rung.

        `flags`: lane and kind, as in fabric.pxd.
        """
        cdef post_t posts[256]
        cdef uint32_t n = 0
        if len(ranges) > 256:
            raise ValueError(f"{len(ranges)} posts in one list: 256 at most")
        for peer, offset, length in ranges:
            self.check_peer(peer)
            posts[n].peer = peer
            posts[n].flags = flags | (POST_RING if ring else 0)
            posts[n].offset = offset
            posts[n].length = length
            n += 1
        return self.table.post_list(self.table.self, posts, n)

    def ring(self, peer):
        """Rings the peer's doorbell if it sleeps; returns how many system calls that took (0 or 1)."""
        self.check_peer(peer)
        return self.table.ring(self.table.self, peer)

    def cut(self, peer):
        self.check_peer(peer)
        self.table.cut(self.table.self, peer)

    def prepare_wait(self):
        self.table.prepare_wait(self.table.self)

    def wait(self, double timeout_s):
        """After prepare_wait(): True if rung, False on timeout. Blocks without the GIL."""
        cdef int r
        with nogil:
            r = self.table.wait(self.table.self, <long long>(timeout_s * 1e9))
        return r == 1

    def finish_wait(self):
        self.table.finish_wait(self.table.self)
