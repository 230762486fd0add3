"""Not part of Spindle: importing this says so."""

raise ImportError("Spindle has no dds.builtin_types: builtin topics are not part of it; ask participant.session")
