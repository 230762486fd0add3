"""The simulator: a whole group in one thread, driven by one seed, with every promise checked after every event.

Why: the bugs of view changes live in interleavings that real processes reach once a year. Here the production core
(`Engine.step_once`), the production membership machine and the production watch run over virtual time, and what
happens next is chosen by a seeded generator; so each bad run can be repeated, looked at, and made smaller.

    events     what can happen, as plain tuples: everything that a run consists of
    world      all nodes, connections and clocks; applies one event after the other, and knows no randomness
    node       one life of a node: engine, machine and watch, driven step by step
    links      what two lives say to each other
    setup      what a run has before its first event
    contracts  what the parts need of lives and world, so that they don't import these
    apps       writers and readers of a node
    fabrics    how rows reach the other nodes: mapped as on one host, or copied line by line as between hosts
    check      the properties, by the names of docs/reliability.md
    schedule   which event comes next: a seed's mix of traffic and faults, then the faults stop and all must settle
    run        one seed from its beginning to its verdict; many seeds on many processors
    sums       what many runs came to; of whole nodes, too
    shrink     a failing run with everything left out that the failure doesn't need
    trace      a run for people: one line per event, one column per node
    probes     rare paths that a nightly run must have reached

Rules: no clock, no hash order, no thread, no randomness but the seed's. The world never chooses: whatever an event
needs is in its tuple, so a run is a list of events and any part of the list is a run as well.
"""
