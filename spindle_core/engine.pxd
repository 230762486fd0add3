"""The node's core: epochs, bindings, predicate thread."""
from spindle_core.bindings cimport Bindings
from spindle_core.epoch cimport Epoch
from spindle_core.larges cimport Larges
from spindle_core.relayed cimport RelayedTable


cdef class Engine(Bindings):
    cdef readonly Epoch past             # the one before, while its last posts are on their way
    cdef readonly Larges larges
    cdef readonly RelayedTable relayed   # what was delivered of writers on hosts without a node

    cdef Epoch installed(self)
    cdef int say_last(self, drain_s) except -1
    cdef int wait_also_for(self, Epoch epoch) except -1
    cdef int take_over_fabric(self, Epoch old, Epoch epoch) except -1
    cdef int drop_past(self) except -1
