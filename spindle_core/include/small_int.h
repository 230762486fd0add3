/* The value of an int of one digit, without a call: most numbers of a sequence are such. */
#ifndef SPINDLE_SMALL_INT_H
#define SPINDLE_SMALL_INT_H

#include <Python.h>

/* 1, and the value in *value, if `number` is an int and small; 0 otherwise. */
static inline int small_int(PyObject *number, long long *value) {
    if (!PyLong_CheckExact(number))
        return 0;
#if PY_VERSION_HEX >= 0x030C0000
    if (!PyUnstable_Long_IsCompact((PyLongObject *)number))
        return 0;
    *value = PyUnstable_Long_CompactValue((PyLongObject *)number);
    return 1;
#else
    switch (Py_SIZE(number)) {
    case 0:
        *value = 0;
        return 1;
    case 1:
        *value = ((PyLongObject *)number)->ob_digit[0];
        return 1;
    case -1:
        *value = -(long long)((PyLongObject *)number)->ob_digit[0];
        return 1;
    default:
        return 0;
    }
#endif
}

#endif
