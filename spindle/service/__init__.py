"""A node as a process: the daemon, its metrics, its supervisor."""
