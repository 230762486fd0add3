"""Not part of Spindle: importing this says so."""

raise ImportError("Spindle has no dds.tools: there is `spindle` on the command line: topics, pub, sub, top, doctor")
