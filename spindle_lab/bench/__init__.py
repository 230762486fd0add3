"""Benchmarks: throughput, latency and memory of the multicast, beside what the machine allows.

Why beside: the speed of one machine changes by a third within hours, so a rate is printed with its ratio to the rate
of bare loops that do the same work (`limit`) in the same run, alternating.

Rules: every node is a process; every byte of every message is written by its sender and read by each receiver; the
order is verified by a hash over the whole delivery sequence of each node; what was lost, torn or out of order is
counted and reported, never left out.
"""
