"""Not part of Spindle: importing this says so."""

raise ImportError("Spindle has no dds.qos_provider: Qos don't come from XML files; build them with dds.qos")
