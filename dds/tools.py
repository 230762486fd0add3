"""Not part of Spindle: importing this says so."""

raise ImportError("Spindle has no dds.tools: there is `spindle` on the command line: ls, topics, typeof, pub, sub, top, doctor")
