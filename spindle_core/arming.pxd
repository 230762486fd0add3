"""Asking for a wake-up: the reader's side of it, which litmus tests race against the node's."""
from spindle_core.atomics cimport fence_store_load, u64_load_relaxed, u64_store_release
from spindle_core.layout cimport cursor_page


cdef inline void arm_cursor(cursor_page *page) noexcept nogil:
    """Before the last look at the tail: from now on the reader wants one ring.

    SYNC POINT: wake. Pairs with log_take_armed(), which looks at `armed` after the new tail was published.
    """
    u64_store_release(&page.armed, u64_load_relaxed(&page.armed) + 1)
    fence_store_load()
