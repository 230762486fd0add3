"""The functions that a node of the simulated fabric calls."""
from spindle_core.fabric.fabric cimport fabric_t
from spindle_core.fabric.links cimport sim_t


cdef void set_table(fabric_t *table, sim_t *s) noexcept
