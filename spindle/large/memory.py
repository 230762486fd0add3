"""The memory of one large sample: a memfd that is filled, and then never changes as long as anybody has it.

Whoever has its descriptor may map it without a copy and needn't trust whoever filled it. There are two ways to that:

- **Sealed**: with F_SEAL_WRITE nobody can ever write into it again, whoever made it.
- **Closed**: nobody has it open to be written, and nobody but its owner can open it so. The kernel says both: it grants
  the owner a lease to read (F_RDLCK) only where no description of the file may write, a mapping's included; and its
  mode lets only the owner's user write. Such memory can be used again, when the kernel says that nobody has it any
  more: it grants a lease to write (F_WRLCK) to the only description there is. So it makes no difference who died,
  hangs, or keeps a mapping for good.

The owner's user is the one that the node runs as, which is trusted on this host (SECURITY.md). Closed memory is for
that user's programs alone. A lease doesn't tell of pages that somebody has given to the kernel (io_uring's buffers,
udmabuf), through which a program of another user could still write; F_SEAL_WRITE waits for these. So what such a
program fills or reads is sealed, and what a node of another user gets, which can't ask for a lease. A reader that gives
pages to the kernel (vmsplice, MSG_ZEROCOPY) must keep its array until the kernel needs them no more, as with any memory
of its own that is freed.

Rules:
- What is unchangeable is found by asking the kernel, never by what a giver says.
- Its file doesn't shrink or grow, so that nobody faults who has mapped it.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from spindle.errors import ConfigError, SampleMissing, SampleUnfit, SpindleError, shortage

SIZED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
SEALS = SIZED | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
SIZE_MAX = 4 << 30  # bytes of one sample
PIECE_BYTES = 256 << 10  # of one on its way between a node and an application elsewhere
REUSED_MIN = 1 << 20  # bytes of a sample whose memory is used again: making less costs no more than asking
_GRAIN = 2 << 20  # bytes of a huge page
_OWNER_WRITES = 0o644
LOOKS = 100  # at memory that somebody may be sealing
LEASED_MAX = 10_000  # tries to open what somebody asks about, which takes microseconds


def make(size: int) -> int:
    """Memory for a sample of this size, to be filled and sealed: its descriptor. Raises ConfigError, NoResources."""
    check_size(size)
    try:
        fd = os.memfd_create("spindle large", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SIZED)
        except OSError:
            os.close(fd)
            raise
    except OSError as error:
        raise _short(error, size) from error
    return fd


def make_closable(size: int) -> int:
    """The same, of memory that need not be sealed when it is filled: see close(). It has capacity_of(size) bytes."""
    check_size(size)
    made = make(capacity_of(size))
    if size < REUSED_MIN:
        return made
    try:
        counted = open_to_write(made)
    except SpindleError:  # there is no /proc: it will be sealed
        return made
    # The kernel counts who writes from open() on, and not the description that memfd_create() has made. So memory that
    # only such a one can write has another mode.
    os.close(made)
    with contextlib.suppress(OSError):
        os.fchmod(counted, _OWNER_WRITES)
    return counted


def capacity_of(size: int) -> int:
    """Bytes of the memory of a sample of this size, where it is used again: up to an eighth more, or 2 MiB, so that
    samples of nearly one size can have it one after the other. What no sample has filled takes no memory."""
    if size < REUSED_MIN:
        return size
    grain = max(_GRAIN, 1 << max(0, size.bit_length() - 4))
    return min((size + grain - 1) // grain * grain, SIZE_MAX)


def check_size(size: int) -> None:
    """Raises ConfigError if no sample has this size."""
    if not 0 < size <= SIZE_MAX:
        raise ConfigError(f"a large sample has 1 to {SIZE_MAX} bytes, not {size}; divide it into several samples")


def _short(error: OSError, size: int) -> SpindleError:
    return shortage(error, f"a large sample of {size} bytes") or SampleUnfit(
        f"no memory for a large sample of {size} bytes: {error.strerror}")


@contextmanager
def filling(fd: int, size: int) -> Iterator[memoryview]:
    """The memory, mapped to be written, for the time of a `with`. No view of it may be left after that: what is mapped
    so can't be sealed. Raises NoResources."""
    try:
        mapped = mmap.mmap(fd, size)
    except OSError as error:
        raise _short(error, size) from error
    with mapped, memoryview(mapped) as view:
        yield view


def write_whole(fd: int, content: bytes | memoryview, at: int) -> None:
    """All of it. Raises OSError."""
    with memoryview(content) as left:
        done = 0
        while done < len(left):
            done += os.pwrite(fd, left[done:], at + done)


def seal(fd: int) -> None:
    """From now on nobody can change it. Raises SampleUnfit while it is mapped to be written."""
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except OSError as error:
        raise SampleUnfit(f"a large sample can't be sealed: {error.strerror}; end all mappings that may write to it "
                          "first") from error


def close(fd: int) -> tuple[int, bool]:
    """Ends writing to what make_closable() has made, by this descriptor and by everybody else: a descriptor to read it,
    and whether it may be used again. It is sealed, and may not, where somebody still has a description that can write
    but no mapping, or no descriptor is left. Takes over the descriptor. Raises SampleUnfit while it is mapped to be
    written."""
    try:
        reads = open_anew(fd)
    except SpindleError:
        return sealed(fd), False
    try:
        os.close(fd)
        if fcntl.fcntl(reads, fcntl.F_GET_SEALS) == SIZED and is_closed(reads):
            return reads, True
        seal_closed(reads)
    except BaseException:
        os.close(reads)
        raise
    return reads, False


def sealed(fd: int) -> int:
    """The descriptor, whose memory is sealed by now. Takes it over. Raises SampleUnfit."""
    try:
        seal(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def is_sealed(fd: int) -> bool:
    """For good."""
    return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS == SEALS


def seal_closed(fd: int) -> None:
    """Seals memory of which this user is the owner, through a descriptor that only reads. Idempotent. Raises
    SampleUnfit, NoResources."""
    if is_sealed(fd):
        return
    writes = open_to_write(fd)
    try:
        seal(writes)
    finally:
        os.close(writes)


def is_closed(fd: int) -> bool:
    """Nobody can write into it, nobody but its owner can open it so, and this user is the owner; by a descriptor that
    only reads."""
    found = os.fstat(fd)
    return (found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == _OWNER_WRITES
            and _grants(fd, fcntl.F_RDLCK))


def is_free(fd: int) -> bool:
    """It may be used again: this is the only description of it that there is, mappings counted, and only reads; nor has
    anybody sealed it."""
    return _grants(fd, fcntl.F_WRLCK) and fcntl.fcntl(fd, fcntl.F_GET_SEALS) == SIZED  # who seals it has it open


def _grants(fd: int, kind: int) -> bool:
    """The kernel would grant a lease of this kind. It is given back at once."""
    try:
        # Who opens it in this moment waits for the lease's end, and its holder gets a signal, which nobody notices.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, kind)
    except OSError:
        return False
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True


def check(fd: int, size: int) -> None:
    """Raises SampleUnfit unless this is memory for exactly this size that nobody can change."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        raise SampleUnfit("a large sample must lie in a memfd; what came is something else") from None
    # Who seals it in this moment has it open to write.
    if seals & SIZED != SIZED or not any(is_sealed(fd) or is_closed(fd) for _ in range(LOOKS)):
        raise SampleUnfit("the memory of a large sample must be sealed (F_SEAL_WRITE, F_SEAL_SHRINK, F_SEAL_GROW, "
                          f"F_SEAL_SEAL), so that nobody can change it; this has {seals:#x} of {SEALS:#x}, and "
                          "somebody may write to it")
    if (found := os.fstat(fd).st_size) not in (size, capacity_of(size)):
        raise SampleUnfit(f"a large sample was to have {size} bytes; its memory has {found}")


def open_anew(fd: int) -> int:
    """Another description of the same memory, that can only read. Raises NoResources."""
    return _open(fd, os.O_RDONLY)


def open_to_write(fd: int) -> int:
    """The same, that can write, too: for its owner. Raises SampleUnfit, NoResources."""
    return _open(fd, os.O_RDWR)


def _open(fd: int, how: int) -> int:
    try:
        for _ in range(LEASED_MAX):
            with contextlib.suppress(BlockingIOError):  # it is being asked about: see _grants()
                return os.open(f"/proc/self/fd/{fd}", how | os.O_CLOEXEC | os.O_NONBLOCK)
        raise SampleMissing("a large sample can't be opened: somebody has a lease on it")
    except OSError as error:
        if isinstance(error, SpindleError):
            raise
        raise shortage(error, "a large sample") or SampleMissing(
            f"a large sample can't be opened: {error.strerror}; is /proc mounted?") from error
