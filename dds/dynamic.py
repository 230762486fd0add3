"""Not part of Spindle: importing this says so."""

raise ImportError("Spindle has no dds.dynamic: types are given by classes (dds.idl.IdlStruct and others), "
                  "there is no type discovery")
