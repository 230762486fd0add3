"""How a node finds the group and enters it, on this host and over contacts."""
