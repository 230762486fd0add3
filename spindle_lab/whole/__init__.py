"""The whole node in the simulator: `spindle daemon`'s modules unmodified, in one thread, under one seed.

A *process* of the simulation is what a process is to the kernel: it has a pid, a user, descriptors, threads and an
end. `system` is the operating system that it sees: clock, randomness, threads, sockets, files. What of these is
deterministic within one process of the kernel is the kernel's own (memory, events, the bytes and descriptors of
connected Unix sockets); what isn't is replaced while a run lasts (`patches`). So no module of the node knows that it is
simulated, and none is written a second time.

    system    processes, threads, the clock, what is due next
    turns     whose turn it is
    threads   threads, of which one at a time runs, with their locks and conditions
    loop      asyncio's loop of a process, with a selector that decides when it sees what has come
    sockets   sockets, and who is at their other end
    lines     connections between hosts, and what becomes of them
    patience  how long one end of such a connection bears the other one's silence
    shortage  descriptors and memory that run out
    disk      files that lose what was not synced
    patches   what stands in for the standard library's during a run
    engines   the production engine, stepped by the world instead of by its thread
    pools     the pool of a node and the links of programs, with the simulation's clock
    world     hosts, nodes, applications and faults of a run
    programs  what applications do
    remotes   applications on a host without a node
    linking   applications with regions, ports and links
    memories  what must hold of these
    liars     applications that lie
    guarded   keys and rules, and who would like to get around them
    keys      certificates that have the same length in every run
    agreed    settings of the group that change
    watching  what applications see of the group
    bounds    what may wait anywhere, and no more
    checks    what must hold, at every step and at the end
    times     what time the order of a topic says
    sets      what belongs together, cut into messages and put together again
    renewals  logged topics that are declared anew
    rest      what nodes must not have once nobody has anything open
    journals  what the disks must hold at the end
    probes    what is rare, and must happen all the same
    run       one seed from its beginning to its verdict
"""
