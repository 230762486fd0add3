"""A table of the last messages of each key, as the layer above wants it. See lasts.pxi."""


cdef lasts_t *new_table(bytes effects, history_depth, table_bytes, samples_max, keys_max, cleanup_ns, bytes ranks,
                        Timing timing) except NULL:
    """See DeliveryLog for what they are. Raises ValueError, MemoryError."""
    cdef int tag
    if len(effects) != 256 or len(ranks) not in (0, 256) or not TABLE_BYTES_MIN <= table_bytes <= TABLE_BYTES_MAX:
        raise ValueError(f"a table of the last messages of each key in {table_bytes} bytes: it must have "
                         f"{TABLE_BYTES_MIN} to {TABLE_BYTES_MAX} bytes, 256 effects, and 256 ranks or none")
    if 0 < cleanup_ns < CLEANUP_NEVER and timing is None:
        raise ValueError(f"what is over is to be kept for {cleanup_ns} ns: that takes messages that say the time")
    cdef lasts_t *t = lasts_make(effects, history_depth, table_bytes, int.from_bytes(os.urandom(8), "little"))
    if t == NULL:
        raise MemoryError(f"there is no memory for a table of {table_bytes} bytes")
    t.samples_max, t.keys_max, t.cleanup_ns = samples_max, keys_max, cleanup_ns
    if ranks:
        lasts_rank(t, ranks)
    if timing is not None:
        for tag in range(256):
            if timing.pointer().kinds[tag] & TIMING_SAYS == TIMING_WORD:
                t.effects[tag] = EFFECT_WORD
            t.by_source |= timing.pointer().kinds[tag] & TIMING_STAMPED != 0
    return t
