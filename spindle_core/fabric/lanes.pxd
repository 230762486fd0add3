"""Which write that waits for a peer carries a later post along: the rules of lanes (fabric.pxd), the same for every
fabric in which posts wait.

The fabric numbers the writes that wait for a peer, in order, and notes for every lane the numbers of its last data and
of its last count. From these and the later post, the functions here tell which write carries that post, and how.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from spindle_core.fabric.fabric cimport POST_GUARD, POST_INLINE_MAX, POST_LANE_SHIFT


# 1 + number of what a lane posted last, which may have left already; 0: nothing yet.
cdef struct lane_t:
    uint64_t data
    uint64_t guard               # the last count


# How a write that waits carries a later one.
cdef enum carriage:
    CARRIES_NOT
    CARRIES_SAME                 # it is the same range
    CARRIES_BEHIND               # it grows by the later one, which follows it in the row


cdef inline lane_t *lane_of(lane_t *lanes, uint64_t n_lanes, uint32_t flags) noexcept nogil:
    """The lane of a post with these flags; NULL: it is in none."""
    cdef uint32_t number = flags >> POST_LANE_SHIFT
    return &lanes[number] if 0 < number < n_lanes else NULL


cdef inline void note_last(lane_t *lane, uint32_t flags, uint64_t end) noexcept nogil:
    """A post of the lane waits now; `end`: 1 + its number."""
    if lane == NULL:
        return
    if flags & POST_GUARD:
        lane.guard = end
    else:
        lane.data = end


cdef inline uint64_t carrier(const lane_t *lane, uint32_t flags, uint64_t whole, uint64_t end) noexcept nogil:
    """1 + number of the only write that may carry this post; 0: none. Of the writes from `whole` up to `end` nothing
    has left. A post without a lane may only join the last write of all: so it overtakes nothing."""
    if lane == NULL:
        return end if end > whole else 0
    if not flags & POST_GUARD:
        return lane.data if lane.data > whole else 0
    # Not where data wait behind that count: the new count would overtake what it guards.
    return lane.guard if lane.guard > whole and lane.guard > lane.data else 0


cdef inline carriage fits(bint in_lane, uint32_t flags, uint64_t waiting, uint64_t waiting_length,
                          uint64_t offset, uint64_t length, uint64_t length_max) noexcept nogil:
    """How its carrier, a write of waiting_length bytes of the row from `waiting`, carries a post of `length` bytes from
    `offset`. `length_max`: no waiting write grows beyond it. A count never grows; and a short post without a lane makes
    no other write grow, since it may be a count."""
    if waiting == offset and waiting_length == length:
        return CARRIES_SAME
    if (in_lane and flags & POST_GUARD) or (not in_lane and length <= POST_INLINE_MAX):
        return CARRIES_NOT
    if waiting + waiting_length != offset or waiting_length + length > length_max:
        return CARRIES_NOT
    return CARRIES_BEHIND


cdef inline bint carry(carriage how, const char **at, char *data, uint32_t *size, const char *row, uint64_t offset,
                       uint64_t length) noexcept nogil:
    """Adds the post to a write of size[0] bytes. These are in the row at at[0]; or, if that is NULL, in `data`, as they
    were at the post. A write that becomes longer than a short post is read from the row. False if it isn't carried."""
    if how == CARRIES_NOT:
        return False
    if how == CARRIES_SAME:
        if at[0] == NULL:
            memcpy(data, row + offset, length)
        return True
    if at[0] == NULL:
        if size[0] + length <= POST_INLINE_MAX:
            memcpy(data + size[0], row + offset, length)
        else:
            at[0] = row + offset - size[0]
    size[0] += <uint32_t>length
    return True
