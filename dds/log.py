"""Not part of Spindle: importing this says so."""

raise ImportError("Spindle has no dds.log: messages go to Python's logging, under \"dds\" and \"spindle\"")
