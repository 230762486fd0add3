"""Threads and time: waking, waiting, and what happens because time passes."""
