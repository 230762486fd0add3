"""Shared mappings: anonymous memory that travels by descriptor.

All memory that two processes share is a memfd: it has no name in a file system, so nothing of it outlives the last
process that maps it, kill -9 included. The maker seals the size, so that a peer that shrinks the file can't make
others fault; seal_writes() makes every later mapping read-only for everybody else.

Rules: a Mapping owns its descriptor; close() is idempotent; a memoryview of it keeps it mapped.
"""
import os

from libc.errno cimport EINVAL, errno
from libc.stdint cimport uint64_t
from posix.mman cimport (
    MAP_ANONYMOUS,
    MAP_FAILED,
    MAP_FIXED,
    MAP_NORESERVE,
    MAP_PRIVATE,
    MAP_SHARED,
    PROT_NONE,
    PROT_READ,
    PROT_WRITE,
    mmap,
    munmap,
)

from spindle_core.atomics cimport monotonic_ns, thread_ns
from spindle_core.events cimport c_close


cdef extern from "fcntl.h" nogil:
    int fcntl(int fd, int command, ...)
    const int F_ADD_SEALS, F_GET_SEALS, F_SEAL_GROW, F_SEAL_SHRINK, F_SEAL_SEAL

cdef extern from *:
    """
    #include <stdlib.h>
    #ifdef __GLIBC__
    #include <malloc.h>
    static int limit_arenas(int most) { return mallopt(M_ARENA_MAX, most); }
    #else
    static int limit_arenas(int most) { (void)most; return 0; }
    #endif
    """
    int limit_arenas(int most) nogil

cdef extern from "pthread.h" nogil:
    int pthread_atfork(void *before, void *parent, void (*child)() noexcept nogil)

cdef extern from "sys/mman.h" nogil:
    int madvise(void *address, size_t size, int advice)
    const int MADV_DONTNEED, MADV_HUGEPAGE

cdef extern from *:
    ctypedef char volatile_char "volatile char"

# linux/mman.h, since Linux 5.14; not in every libc's header
cdef int MADV_POPULATE_READ = 22
cdef int MADV_POPULATE_WRITE = 23
# the same, since Linux 6.1
cdef int MADV_COLLAPSE = 25

cdef int F_SEAL_FUTURE_WRITE = 0x10  # linux/fcntl.h, since Linux 5.1; not in every libc's header

cdef enum:
    HUGE_PAGE = 2 << 20          # bytes of a huge page; where the machine has others, all below does nothing
    HUGE_MIN = 4 << 20           # less is not worth the calls
    SLOW_NS = 1000000            # a huge page that takes so long had no memory of the host yet
    SLOW_FOR_NS = 10000000000    # as long as the next ones are expected to be like that

cdef uint64_t last_slow_ns = 0   # of this process; a lost update costs one slow page

SIZE_MAX_BYTES = 1 << 40
PAGE = os.sysconf("SC_PAGESIZE")
cdef uint64_t page_bytes = PAGE


cdef void count_fork() noexcept nogil:
    global forks
    forks += 1


pthread_atfork(NULL, NULL, count_fork)


def share_arenas(int most):
    """Has the threads of this process share `most` arenas of glibc's malloc; False where there is another malloc.

    For a process whose many threads allocate seldom: otherwise each thread keeps, in an arena of its own, all memory
    that its largest job has left free, in up to eight arenas per processor. To be called before these threads begin.
    """
    return bool(limit_arenas(most))


cdef void *map_shared(int fd, uint64_t size, int protection) noexcept nogil:
    """mmap(), of large memory at an address at which huge pages can be mapped."""
    cdef char *reserved
    cdef char *at
    cdef char *end
    cdef uint64_t room
    if size < HUGE_MIN:
        return mmap(NULL, size, protection, MAP_SHARED, fd, 0)
    room = (size + page_bytes - 1) // page_bytes * page_bytes
    reserved = <char *>mmap(NULL, room + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    if <void *>reserved == MAP_FAILED:
        return MAP_FAILED
    at = <char *>((<uint64_t>reserved + HUGE_PAGE - 1) // HUGE_PAGE * HUGE_PAGE)
    end = reserved + room + HUGE_PAGE
    if mmap(at, size, protection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED:
        munmap(reserved, room + HUGE_PAGE)
        return MAP_FAILED
    if at > reserved:
        munmap(reserved, at - reserved)
    if end > at + room:
        munmap(at + room, end - (at + room))
    return at


cdef void collapse(char *base, uint64_t size) noexcept nogil:
    """Has the kernel make huge pages of a range, of which a page is there in each.

    It clears each huge page in one go, during which nothing else runs on that core, whatever its priority: mostly 0.2
    ms. But where the host of a virtual machine has taken free memory back, that is 6 ms a page. Then the page is
    cleared twice: first as a private one, which the kernel does bit by bit, and which it gives back as the next one.
    """
    global last_slow_ns
    cdef char *spare = <char *>MAP_FAILED
    cdef uint64_t at = 0, begun, now = thread_ns()     # of this thread: others may have the core in between
    cdef bint slow = last_slow_ns != 0 and monotonic_ns() - last_slow_ns < SLOW_FOR_NS
    while at < size:
        begun = now
        if slow:
            if spare == <char *>MAP_FAILED:
                spare = <char *>mmap(NULL, 2 * HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
            if spare != <char *>MAP_FAILED:
                warm_up(<char *>((<uint64_t>spare + HUGE_PAGE - 1) // HUGE_PAGE * HUGE_PAGE))
        madvise(base + at, HUGE_PAGE, MADV_COLLAPSE)
        at += HUGE_PAGE
        now = thread_ns()
        if now - begun > SLOW_NS:
            last_slow_ns = monotonic_ns()
            slow = True
    if spare != <char *>MAP_FAILED:
        munmap(spare, 2 * HUGE_PAGE)


cdef void warm_up(char *page) noexcept nogil:
    """A huge page is taken, cleared and given back."""
    madvise(page, HUGE_PAGE, MADV_HUGEPAGE)
    (<volatile_char *>page)[0] = 1
    madvise(page, HUGE_PAGE, MADV_DONTNEED)


cdef class Mapping:
    """A shared mapping of `size` bytes. Owns its descriptor."""

    def __cinit__(self):
        self.base = NULL
        self.fd = -1
        self.size = 0
        self.exports = 0

    def __init__(self):
        raise TypeError("use Mapping.create(name, size), attach(fd) or private(size)")

    @classmethod
    def create(cls, str name, size, *, bint exact=False):
        """A new zeroed memfd of `size` bytes (rounded up to pages, unless `exact`), mapped for reading and writing.

        Raises ValueError for a size that is not positive, OSError where the system refuses.
        """
        if not 0 < size <= SIZE_MAX_BYTES:
            raise ValueError(f"a mapping of {size} bytes: must be between 1 and {SIZE_MAX_BYTES}")
        if not exact:
            size = (size + PAGE - 1) // PAGE * PAGE
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            if fcntl(fd, F_ADD_SEALS, <int>(F_SEAL_GROW | F_SEAL_SHRINK)) != 0:
                raise OSError("memfd can't be sealed: Linux 3.17 or newer is needed")
            return Mapping._map(fd, size, True)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, int fd, bint writable=False):
        """Maps a received descriptor whole; takes ownership of it, also when it fails.

        Raises ValueError if it isn't sealed against shrinking (its sender could make us fault), OSError from mmap.
        """
        cdef int seals
        try:
            size = os.fstat(fd).st_size
            if size <= 0:
                raise ValueError("the descriptor holds no memory")
            seals = fcntl(fd, F_GET_SEALS)
            if seals < 0 or not seals & F_SEAL_SHRINK:   # -1: not a memfd at all, so anybody may truncate it
                raise ValueError("the descriptor isn't sealed against shrinking")
            return Mapping._map(fd, size, writable)
        except BaseException:
            if fd >= 0:
                os.close(fd)
            raise

    @classmethod
    def private(cls, size):
        """Zeroed memory of this process only, without a descriptor: for simulated nodes, which share an address space.

        Raises ValueError for a size that is not positive, MemoryError.
        """
        cdef Mapping m = Mapping.__new__(Mapping)
        cdef void *p
        if not 0 < size <= SIZE_MAX_BYTES:
            raise ValueError(f"a mapping of {size} bytes: must be between 1 and {SIZE_MAX_BYTES}")
        size = (size + PAGE - 1) // PAGE * PAGE
        p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        if p == MAP_FAILED:
            raise MemoryError(f"mmap of {size} private bytes failed")
        m.base = <char *>p
        m.size = size
        m.writable = True
        return m

    @staticmethod
    def _map(int fd, uint64_t size, bint writable):
        cdef Mapping m = Mapping.__new__(Mapping)
        cdef void *p = map_shared(fd, size, PROT_READ | (PROT_WRITE if writable else 0))
        if p == MAP_FAILED:
            raise OSError(errno, f"mmap of {size} bytes failed ({'read-write' if writable else 'read-only'})")
        m.base = <char *>p
        m.size = size
        m.fd = fd
        m.writable = writable
        return m

    def seal_writes(self):
        """From now on nobody can map this memory for writing; mappings that exist stay as they are."""
        if fcntl(self.fd, F_ADD_SEALS, <int>(F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)) != 0:
            raise OSError("F_SEAL_FUTURE_WRITE refused: Linux 5.1 or newer is needed")

    cdef uint64_t populate(self, uint64_t offset, uint64_t size) except? 0:
        """Faults in the pages of a range before anybody needs them; returns how many bytes that makes, 0 where the
        kernel doesn't know how. What they hold stays as it is.

        OSError where memory has run out: here that can be told; at a later store the process would die of it.
        """
        cdef uint64_t page = PAGE, first = offset // page * page
        cdef uint64_t end = min((offset + size + page - 1) // page * page, self.size)
        cdef int failed, how = MADV_POPULATE_WRITE if self.writable else MADV_POPULATE_READ
        if self.base == NULL or first >= end:
            return 0
        with nogil:
            failed = madvise(self.base + first, end - first, how)
        if failed and errno == EINVAL:
            return 0
        if failed:
            raise OSError(errno, f"{end - first} bytes of a mapping can't be had: {os.strerror(errno)}")
        return end - first

    def make_ready(self, uint64_t size):
        """Has the pages of the first `size` bytes there, to be filled at the speed of memory: huge ones where the
        kernel has some. What is in them stays as it is.

        Without it every 4 KB cost a fault of who fills them, and of each who reads them, which is most of what a large
        sample costs. The kernel gives huge pages on demand (MADV_COLLAPSE) where a page of the range is there, whatever
        is configured; where it doesn't, the pages are small ones. OSError as populate().
        """
        cdef uint64_t at, whole = size // HUGE_PAGE * HUGE_PAGE
        if size > self.size:
            raise ValueError(f"{size} bytes of a mapping that has {self.size}")
        # What was a sample before has its pages.
        if size >= HUGE_MIN and self.writable and os.fstat(self.fd).st_blocks * 512 < size:
            for at in range(0, whole, HUGE_PAGE):
                if not self.populate(at, 1):
                    break
            with nogil:
                collapse(self.base, whole)   # as much as there is: the rest is populated below
        self.populate(0, size)

    def become_private(self):
        """Views of it stay valid, and what is written through them from now on nobody else sees: in place of the shared
        memory they have a private copy of it, made page by page when it is written. What was shared can be sealed then.
        Where the system lets it be opened anew, nothing of this mapping has it open to be written any more. Ends as
        close_descriptor(). OSError if the system refuses."""
        cdef int reads
        cdef void *p
        if self.base == NULL or self.fd < 0:
            raise ValueError("the mapping is closed")
        try:
            reads = os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:  # there is no /proc
            reads = self.fd
        p = mmap(self.base, self.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, reads, 0)
        if reads != self.fd:
            os.close(reads)
        if p == MAP_FAILED:
            raise OSError(errno, f"mmap of {self.size} private bytes failed")
        self.close_descriptor()

    def close_descriptor(self):
        """Closes the descriptor alone: the memory goes with the last who uses it. `exports` doesn't tell of those,
        because NumPy uses memory without (it holds the Mapping itself). Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def view(self):
        """The whole mapping as a memoryview of bytes (read-only where the mapping is)."""
        return memoryview(self)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if self.base == NULL:
            raise ValueError("the mapping is closed")
        if flags & 1 and not self.writable:  # PyBUF_WRITABLE
            raise BufferError("the mapping is read-only")
        buffer.buf = self.base
        buffer.obj = self
        buffer.len = <Py_ssize_t>self.size
        buffer.itemsize = 1
        buffer.readonly = not self.writable
        buffer.ndim = 1
        buffer.format = <char *>b"B" if flags & 4 else NULL
        buffer.shape = &buffer.len if flags & 8 else NULL
        buffer.strides = &buffer.itemsize if (flags & 24) == 24 else NULL
        buffer.suboffsets = NULL
        buffer.internal = NULL
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *buffer):
        self.exports -= 1

    def close(self):
        """Unmaps and closes the descriptor. Idempotent. While a memoryview of it lives, only the descriptor goes."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if self.base != NULL and self.exports == 0:
            munmap(self.base, self.size)
            self.base = NULL

    def __dealloc__(self):
        # Not os.close(), here and elsewhere: at the end of an interpreter that may be gone already.
        if self.base != NULL:
            munmap(self.base, self.size)
            self.base = NULL
        if self.fd >= 0:
            c_close(self.fd)
            self.fd = -1
