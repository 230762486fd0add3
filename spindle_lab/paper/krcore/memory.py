"""What links and connections of the production pool hold in memory: measured, as bytes that were asked of the system.

Method: pages of shared memory that exist (a memory file's blocks), and what malloc has given out (glibc's mallinfo2),
before and after. Python's own small objects are not in it, and no garbage is collected in between.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from spindle_core.links.link import Link
from spindle_core.links.pool import LINKS
from spindle_lab.paper.krcore.hosts import KERNEL, make_hosts

FD_MARGIN = 200


class _Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]


def heap_bytes() -> int:
    """That malloc has given out. OSError where the C library doesn't say (it is not glibc 2.33 or later)."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        raise OSError("what links hold is measured with mallinfo2() of glibc 2.33 or later, which isn't here") from None
    mallinfo.restype = _Mallinfo
    found = mallinfo()
    return int(found.uordblks + found.hblkhd)


@contextmanager
def _without_garbage() -> Iterator[None]:
    """What others have left goes before, and nothing goes meanwhile."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _shared_bytes(links: list[Link]) -> int:
    return sum(512 * os.fstat(page.fd).st_blocks for link in links for page in (link.user_page, link.pool_page))


def _make_room(descriptors: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < descriptors:
        raise OSError(f"{descriptors} descriptors are needed to measure what links hold, the limit here is {hard}: "
                      "ulimit -Hn")
    if soft != resource.RLIM_INFINITY and soft < descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))


def links_bytes(n: int) -> int:
    """Of so many open links, of as few pools as may have them. OSError where it can't be measured here."""
    _make_room(2 * n + FD_MARGIN)
    _, _, hosts = make_hosts(1 + -(-n // LINKS), KERNEL)
    links: list[Link] = [hosts[1].pool.open_link(hosts[0].id)]  # what the first one of a process needs is not counted
    hosts[1].pool.close_link(links.pop())
    hosts[1].pool.tidy()
    with _without_garbage():
        before = heap_bytes()
        for k in range(n):
            links.append(hosts[1 + k // LINKS].pool.open_link(hosts[0].id))
        found = heap_bytes() - before + _shared_bytes(links)
    del hosts, links, _
    gc.collect()  # the descriptors of all of them
    return found


def connection_bytes() -> int:
    """Of one more connection of two pools, at one end."""
    _, _, hosts = make_hosts(2, KERNEL)
    with _without_garbage():
        before = heap_bytes()
        for _ in range(8):
            hosts[0].connect(hosts[1])
        return (heap_bytes() - before) // 16
