"""Large samples on a node: what it has of them, and how it gets the bytes of those that others have."""
