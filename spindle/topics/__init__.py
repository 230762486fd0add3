"""The topics of a node: what each has here, what applications open of it, and who is told."""
