/* A message as Python sees it: bytes, with what came with it carried behind the payload in the same object.
 *
 * Why not an attribute: a dictionary and an info object for every message cost more than the message. Here both are
 * made only when somebody asks. The object is one allocation, not tracked by the garbage collector:
 *
 *   bytes object | payload | NUL | padding to 8 | message_tail
 *
 * Rules: instances come from message_bytes_new() alone (tp_new refuses, and bytes.__new__ refuses a type with another
 * tp_new), so a tail is always there. The type can't be subclassed: Python tracks instances of its own classes.
 */
#ifndef SPINDLE_MESSAGE_BYTES_H
#define SPINDLE_MESSAGE_BYTES_H

#include <Python.h>
#include <stddef.h>
#include <string.h>
#include "layout.h"

struct message_tail {
    struct log_record record;   /* as it was delivered; but `position` is its index, as its reader counts */
    PyObject *info_type;        /* owned: type of the info object that is made on demand */
};

static inline struct message_tail *message_tail_of(PyObject *message) {
    size_t at = offsetof(PyBytesObject, ob_sval) + (size_t)Py_SIZE(message) + 1;
    return (struct message_tail *)((char *)message + align_up(at, 8));
}

/* Memory of messages that have gone, for the next ones of the same size: a reader that takes 64 at a time gets the same
 * memory again, which is still in the cache. It is bounded, and all of one size; other sizes come from Python's allocator,
 * and when many have come in a row, what is here is given back. Under the GIL; without one there is none.
 */
enum { SPARE_MAX = 64, SPARE_ROOM_MAX = 16 << 10, SPARE_MISSES_MAX = 256 };

static struct {
    size_t room;                /* bytes of each */
    unsigned count, misses;     /* misses: allocations of another size in a row */
    void *messages[SPARE_MAX];
} message_spare;

static inline size_t message_room(size_t size) {
    return align_up(offsetof(PyBytesObject, ob_sval) + size + 1, 8) + sizeof(struct message_tail);
}

static inline void *message_allocate(size_t room) {
#ifndef Py_GIL_DISABLED
    if (message_spare.room == room) {
        message_spare.misses = 0;
        if (message_spare.count)
            return message_spare.messages[--message_spare.count];
    } else if (message_spare.count && ++message_spare.misses > SPARE_MISSES_MAX) {
        message_spare.misses = 0;
        while (message_spare.count)
            PyObject_Free(message_spare.messages[--message_spare.count]);
    }
#endif
    return PyObject_Malloc(room);
}

static inline void message_free(void *message, size_t room) {
#ifndef Py_GIL_DISABLED
    if (room <= SPARE_ROOM_MAX && message_spare.count < SPARE_MAX) {
        if (message_spare.count == 0)
            message_spare.room = room;
        if (message_spare.room == room) {
            message_spare.messages[message_spare.count++] = message;
            return;
        }
    }
#endif
    PyObject_Free(message);
}

static void message_bytes_dealloc(PyObject *message) {
    PyTypeObject *type = Py_TYPE(message);
    Py_XDECREF(message_tail_of(message)->info_type);
    message_free(message, message_room((size_t)Py_SIZE(message)));
    Py_DECREF(type);
}

static PyObject *message_bytes_refuse(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)args;
    (void)kwargs;
    PyErr_Format(PyExc_TypeError, "%s objects come from readers: use bytes", type->tp_name);
    return NULL;
}

/* Copies and pickles are plain bytes. */
static PyObject *message_bytes_reduce(PyObject *message, PyObject *unused) {
    (void)unused;
    return Py_BuildValue("O(y#)", (PyObject *)&PyBytes_Type, PyBytes_AS_STRING(message), PyBytes_GET_SIZE(message));
}

static PyMethodDef message_bytes_methods[] = {
    {"__reduce__", message_bytes_reduce, METH_NOARGS, "Pickles as plain bytes."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot message_bytes_slots[] = {
    {Py_tp_doc, (void *)"A message: bytes that know what came with them. Made by readers only."},
    {Py_tp_dealloc, (void *)message_bytes_dealloc},
    {Py_tp_new, (void *)message_bytes_refuse},
    {Py_tp_methods, (void *)message_bytes_methods},
    {0, NULL},
};

static PyType_Spec message_bytes_spec = {
    .name = "spindle_core.message.MessageBytes",
    .basicsize = 0,             /* inherited: bytes has items, so nothing can be added in front of them */
    .itemsize = 0,
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = message_bytes_slots,
};

static inline PyObject *message_bytes_make_type(void) {
    return PyType_FromSpecWithBases(&message_bytes_spec, (PyObject *)&PyBytes_Type);
}

static inline int message_bytes_is_type(PyObject *type) {
    return ((PyTypeObject *)type)->tp_new == message_bytes_refuse;
}

/* A new message of `size` bytes at `payload`; `record` is copied, `info_type` gets one more reference. */
static inline PyObject *message_bytes_new(PyObject *type, const char *payload, size_t size,
                                          const struct log_record *record, PyObject *info_type) {
    PyBytesObject *message = (PyBytesObject *)message_allocate(message_room(size));
    struct message_tail *tail;
    if (message == NULL)
        return PyErr_NoMemory();
    PyObject_InitVar((PyVarObject *)message, (PyTypeObject *)type, (Py_ssize_t)size);
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif
    message->ob_shash = -1;     /* not yet computed */
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
    memcpy(message->ob_sval, payload, size);
    message->ob_sval[size] = 0;
    tail = message_tail_of((PyObject *)message);
    tail->record = *record;
    Py_INCREF(info_type);
    tail->info_type = info_type;
    return (PyObject *)message;
}

#endif
