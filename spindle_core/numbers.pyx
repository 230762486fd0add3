"""Lists of numbers from the bytes of a payload, and back: little endian, one size each.

Why here: a sequence of 10,000 numbers is one loop, and in Python each of its rounds costs as much as a whole small
sample. It knows nothing of payloads: what encodes types above calls it for their sequences.

Codes are those of the struct module: b h i q, B H I Q, f d.
"""
from cpython.float cimport PyFloat_AsDouble, PyFloat_FromDouble
from cpython.list cimport PyList_GET_SIZE, PyList_New
from cpython.long cimport (
    PyLong_AsLong,
    PyLong_AsLongLong,
    PyLong_AsUnsignedLongLong,
    PyLong_FromLongLong,
    PyLong_FromUnsignedLongLong,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.ref cimport PyObject
from libc.math cimport isfinite
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef list OCTETS = list(range(-128, 256))    # each small number is one object


cdef inline Py_ssize_t size_of(Py_UCS4 code) except -1:
    if code == u"b" or code == u"B":
        return 1
    if code == u"h" or code == u"H":
        return 2
    if code == u"i" or code == u"I" or code == u"f":
        return 4
    if code == u"q" or code == u"Q" or code == u"d":
        return 8
    raise ValueError(f"{chr(code)!r} is no code of a number here")


cdef extern from "Python.h":
    PyObject *PyList_GET_ITEM(object values, Py_ssize_t k)       # borrowed, which Cython's own declaration isn't
    void PyList_SET_ITEM(object values, Py_ssize_t k, PyObject *one)
    void Py_INCREF(PyObject *one)


cdef extern from "small_int.h":
    int small_int(object number, long long *value)


cdef inline void put(list out, Py_ssize_t k, PyObject *one) noexcept:
    """Into a place of a new list."""
    Py_INCREF(one)
    PyList_SET_ITEM(out, k, one)


def numbers_of(const uint8_t[::1] data not None, Py_UCS4 code):
    """The numbers in `data`, as a list of int or float. ValueError unless they fill it."""
    cdef Py_ssize_t size = size_of(code), n = data.shape[0] // size, k
    cdef const uint8_t *at = &data[0] if data.shape[0] else NULL
    cdef list out, small
    cdef object one
    cdef int16_t h
    cdef uint16_t uh
    cdef int32_t i
    cdef uint32_t ui
    cdef int64_t q
    cdef uint64_t uq
    cdef float f
    cdef double d
    if n * size != data.shape[0]:
        raise ValueError(f"{data.shape[0]} bytes are not whole numbers of {size}")
    out = PyList_New(n)
    if size == 1:
        small = OCTETS
        if code == u"B":
            for k in range(n):
                put(out, k, PyList_GET_ITEM(small, 128 + at[k]))
        else:
            for k in range(n):
                put(out, k, PyList_GET_ITEM(small, 128 + <Py_ssize_t><int8_t>at[k]))
        return out
    for k in range(n):
        if code == u"d":
            memcpy(&d, at + 8 * k, 8)
            one = PyFloat_FromDouble(d)
        elif code == u"f":
            memcpy(&f, at + 4 * k, 4)
            one = PyFloat_FromDouble(f)
        elif code == u"h":
            memcpy(&h, at + 2 * k, 2)
            one = PyLong_FromLongLong(h)
        elif code == u"H":
            memcpy(&uh, at + 2 * k, 2)
            one = PyLong_FromLongLong(uh)
        elif code == u"i":
            memcpy(&i, at + 4 * k, 4)
            one = PyLong_FromLongLong(i)
        elif code == u"I":
            memcpy(&ui, at + 4 * k, 4)
            one = PyLong_FromLongLong(ui)
        elif code == u"q":
            memcpy(&q, at + 8 * k, 8)
            one = PyLong_FromLongLong(q)
        else:
            memcpy(&uq, at + 8 * k, 8)
            one = PyLong_FromUnsignedLongLong(uq)
        put(out, k, <PyObject *>one)
    return out


cdef inline int refuse(object value, Py_UCS4 code) except -1:
    raise OverflowError(f"{value!r} doesn't fit a number of code {chr(code)}")


def bytes_of(list values not None, Py_UCS4 code):
    """The bytes of these numbers. Raises OverflowError for one that doesn't fit, TypeError for what is no number."""
    cdef Py_ssize_t size = size_of(code), n = PyList_GET_SIZE(values), k
    cdef bytes out = PyBytes_FromStringAndSize(NULL, n * size)
    cdef uint8_t *at = <uint8_t *>PyBytes_AS_STRING(out)
    cdef object one
    cdef long long small
    cdef int64_t low = -(<int64_t>1 << (8 * size - 2)) * 2, q
    cdef int64_t high = -1 - low
    cdef uint64_t top = <uint64_t>-1 >> (64 - 8 * size), uq
    cdef float f
    cdef double d
    cdef bint signed = code == u"b" or code == u"h" or code == u"i" or code == u"q"
    if code == u"B":
        for k in range(n):
            if k >= PyList_GET_SIZE(values):
                raise ValueError("the list changed while it was read")
            one = values[k]
            if not small_int(one, &small):
                small = PyLong_AsLong(one)
            q = small
            if q < 0 or q > 255:
                refuse(one, code)
            at[k] = <uint8_t>q
        return out
    for k in range(n):
        if k >= PyList_GET_SIZE(values):
            raise ValueError("the list changed while it was read")     # by a number that is an object of a program
        one = values[k]
        if code == u"d":
            d = PyFloat_AsDouble(one)
            memcpy(at + 8 * k, &d, 8)
        elif code == u"f":
            d = PyFloat_AsDouble(one)
            f = <float>d
            if isfinite(d) and not isfinite(f):
                refuse(one, code)
            memcpy(at + 4 * k, &f, 4)
        elif signed:
            if small_int(one, &small):
                q = small
            else:
                q = PyLong_AsLongLong(one)
            if q < low or q > high:
                refuse(one, code)
            memcpy(at + size * k, &q, size)
        else:
            if small_int(one, &small) and small >= 0:
                uq = <uint64_t>small
            else:
                uq = PyLong_AsUnsignedLongLong(one)
            if uq > top:
                refuse(one, code)
            memcpy(at + size * k, &uq, size)
    return out
