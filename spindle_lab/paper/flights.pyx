"""Writes alone: what the network model does with them, without nodes."""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, malloc
from libc.string cimport memset

from spindle_lab.paper.clock cimport clock_add, clock_take, event_t
from spindle_lab.paper.wire cimport (
    EVENT_ARRIVED,
    EVENT_CARD,
    EVENT_POSTED,
    MEMBERS_MAX,
    card_next,
    card_t,
    free_network,
    network_state_t,
    posted,
    set_network,
    transfer_t,
    wire_t,
)


def fly(network, writes):
    """When writes arrive. `writes`: (ns at which the card has it, source, target, bytes) of each; the least time first
    where one source has several for one target. Returns (ns, place in `writes`) in the order of arrival.

    Raises ValueError for members that the model has no room for, writes to oneself, or impossible costs.
    """
    cdef network_state_t *net = <network_state_t *>calloc(1, sizeof(network_state_t))
    cdef transfer_t *t
    cdef wire_t *w
    cdef event_t event
    cdef uint32_t source, target
    cdef list found = []
    if net == NULL:
        raise MemoryError()
    try:
        set_network(net, network)
        for place, (at_ns, source, target, length) in enumerate(writes):
            if source >= MEMBERS_MAX or target >= MEMBERS_MAX or source == target:
                raise ValueError(f"from {source} to {target}: two of {MEMBERS_MAX} members")
            t = <transfer_t *>malloc(sizeof(transfer_t))
            if t == NULL:
                raise MemoryError()
            memset(t, 0, sizeof(transfer_t))
            w = &net.wires[0][source * MEMBERS_MAX + target]
            w.source, w.target = source, target
            t.wire = w
            t.offset = <uint64_t>place
            t.length = t.left = <uint64_t>length
            clock_add(&net.clock, <uint64_t>round(at_ns * 1000), EVENT_POSTED, t)
        while clock_take(&net.clock, &event):
            if event.kind == EVENT_POSTED:
                posted(net, <transfer_t *>event.what)
            elif event.kind == EVENT_CARD:
                card_next(net, <card_t *>event.what)
            elif event.kind == EVENT_ARRIVED:
                t = <transfer_t *>event.what
                found.append((event.at_ps / 1000.0, t.offset))
                t.next = net.free
                net.free = t
        if net.clock.failed:
            raise MemoryError("no memory for the events of these writes")
    finally:
        free_network(net)
    return found
