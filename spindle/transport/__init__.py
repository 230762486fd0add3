"""Connections between nodes and with applications: frames, sockets, introductions."""
