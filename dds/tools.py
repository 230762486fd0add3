"""Not part of Spindle: importing this says so."""

raise ImportError("Spindle has no dds.tools: `spindle` on the command line has ls, topics, typeof, pub, sub, top")
