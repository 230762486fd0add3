"""Shared mappings: anonymous memory that travels by descriptor."""
from libc.stdint cimport uint32_t, uint64_t


# How many fork()s have led to this process: what was opened before the last one isn't its own.
cdef uint32_t forks


cdef class Mapping:
    cdef object __weakref__
    cdef char *base               # NULL once closed
    cdef readonly uint64_t size   # bytes
    cdef readonly int fd          # -1 once closed
    cdef readonly bint writable
    cdef Py_ssize_t exports       # memoryviews alive: close() waits for none, it refuses to unmap under them

    cdef uint64_t populate(self, uint64_t offset, uint64_t size) except? 0
