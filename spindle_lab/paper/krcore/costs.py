"""What things cost in the model of the KRCore paper's cluster, each with its source.

Sections and figures are those of "KRCore: A Microsecond-scale RDMA Control Plane for Elastic Computing" (USENIX ATC
'22). Four kinds of costs:

- `given`: the paper says what one part takes.
- `calibrated`: taken from an outcome that the paper reports. That outcome comes out again, so it counts as no
  prediction; `rows` names it as calibrated.
- `measured`: of this project's own code, on a two-core x86-64 virtual machine (`spindle paper krcore --measure`).
- `assumed`: neither; the source says why.
"""

from __future__ import annotations

from dataclasses import dataclass

from spindle_lab.paper.parameters import INFINIBAND_100, PAPER

GIVEN, CALIBRATED, MEASURED, ASSUMED = "given", "calibrated", "measured", "assumed"


@dataclass(frozen=True)
class Cost:
    """One entry of the table."""

    name: str
    value: float
    unit: str
    kind: str
    source: str


# ---- one-sided requests and messages over a device -----------------------------------------------------------------

READ = Cost("read", 2150.0, "ns", CALIBRATED,
            '"when using one client, the latency of KRCore (RC) is 3.15 us, and the verbs is 2.15 us" (5.2): from the '
            "post to the completion. Half of it, less the device's time, each way; writes and atomics the same, of "
            'which the paper says "similar to the READ"')
DC = Cost("dc", 3240.0 - 3150.0, "ns", CALIBRATED, '"the latency of KRCore (DC) under one client is 3.24 us" (5.2)')
ECHO = Cost("echo", 7900.0, "ns", CALIBRATED,
            '"one KRCore (RC) echo takes 9.6 us while verbs takes 7.9 us" (5.2): two messages, and the server between')
DEVICE_READ = Cost("device_read", 1e9 / 138e6, "ns", CALIBRATED,
                   '"verbs (138M reqs/sec)" with 240 clients, "bottlenecked by the server RNIC" (5.2)')
DEVICE_WRITE = Cost("device_write", 1e9 / 145e6, "ns", CALIBRATED, '"a peak throughput of 145M reqs/sec" (5.2)')
DEVICE_DC = Cost("device_dc", 1e9 / 118e6 - 1e9 / 138e6, "ns", CALIBRATED,
                 '"KRCore (DC) is 14% slower (118 M reqs/sec)" for reads, "due to extra DCT processing at the RNIC" '
                 "(5.2)")
RECONNECT = Cost("reconnect", 1680.0, "ns", CALIBRATED,
                 "64 reads of targets at random over one DCQP take 99 us (5.2, Figure 14 (a)); what it does for one "
                 'target waits for what it does for the one before. "Our measured overhead is less than 1 us" (3)')
SERVE = Cost("serve", 24 / 42.3e6 * 1e9, "ns", CALIBRATED,
             'of a server\'s thread for an echo: "all cores (24 threads)", "verbs can achieve 42.3M reqs/sec" (5.2)')
BYTES_S = Cost("bytes_s", 12.5e9, "bytes/s", GIVEN, '"100Gbps InfiniBand RNIC" (5); of a port, each direction')
PACKET = Cost("packet", INFINIBAND_100.packet_bytes, "bytes", ASSUMED, "as in docs/paper.md: InfiniBand's largest MTU")
OVERHEAD = Cost("overhead", INFINIBAND_100.packet_overhead_bytes, "bytes", ASSUMED,
                "as in docs/paper.md: a packet's headers")

# ---- control path --------------------------------------------------------------------------------------------------

ENTRY = Cost("entry", 900.0, "ns", GIVEN,
             'of the kernel, for a call and the look for its completion: a connection that is cached "only has system '
             'call overheads and is extremely small (0.9 us)" (5.1). Of an echo once at each end: "the server needs to '
             'enter the kernel to receive a message" (5.2)')
VERBS_CONNECT = Cost("verbs_connect", 15.7e6, "ns", GIVEN, '"verbs and LITE take 15.7ms and 2ms" (5.1): all of it, '
                     "driver, creation, handshake and configuration (2.3.1)")
LITE_CONNECT = Cost("lite_connect", 2e6, "ns", GIVEN, "the same: creation and configuration (2.3.2)")
PAIRS_S = Cost("pairs_s", 712.0, "1/s", GIVEN,
               'queue pairs that a node can make: "712 QPs/second per node throughput, bottlenecked by the RNIC" '
               "(2.3.2)")
META_BYTES = Cost("meta_bytes", 64.0, "bytes", ASSUMED,
                  "of each of the two reads of the meta server: a line. The paper has 12 bytes of metadata for a node, "
                  "and doesn't say what DrTM-KV reads. ValidMR is the same store: two reads likewise")
PROCESSES = Cost("processes", 244e6, "ns", CALIBRATED,
                 'to make 180 processes: "RACE can finish the startup in 244ms", "bottlenecked by OS creating worker '
                 'processors" (5.3.1)')
SEND_ENTRY = Cost("send_entry", 448.0, "bytes", GIVEN, "of a send queue (2.3.2, footnote 3)")
SEND_ENTRIES = Cost("send_entries", 292.0, "", GIVEN, "the same, of one")
DONE_ENTRY = Cost("done_entry", 64.0, "bytes", GIVEN, "of a completion queue (2.3.2, footnote 3)")
DONE_ENTRIES = Cost("done_entries", 257.0, "", GIVEN, "the same, of one")
PAIR_BYTES = Cost("pair_bytes", 159 * 1024.0, "bytes", GIVEN,
                  '"each QP consumes at least 159KB memory" (2.3.2), rounded up as the driver does')
DC_PAIRS = Cost("dc_pairs", 48.0, "", GIVEN, '"a (small) constant number of DCQP (48)" (5.2)')
DC_BYTES = Cost("dc_bytes", 12.0, "bytes", GIVEN, '"each DCT metadata only consumes 12B" (5.2)')

# ---- this project's pool -------------------------------------------------------------------------------------------

POOL_RUN = Cost("pool_run", 220.0, "ns", MEASURED, "a run of the pool that finds nothing")
POOL_LINK = Cost("pool_link", 7.3, "ns", MEASURED, "that a run takes more for each open link")
POOL_LIST = Cost("pool_list", 55.0, "ns", MEASURED, "a list of one request: found, checked, posted")
POOL_REQUEST = Cost("pool_request", 20.0, "ns", MEASURED, "each further request of a list")
POOL_DONE = Cost("pool_done", 8.0, "ns", MEASURED, "a completion, into the memory of its user")
POOL_FIND = Cost("pool_find", 3500.0, "ns", MEASURED,
                 "a region is asked for that the node knows: this part of the pool's thread is Python")
POOL_LOOKUP = Cost("pool_lookup", 5500.0, "ns", MEASURED,
                   "what that takes more where the region has to be looked up; Python likewise")
HANDOVER = Cost("handover", PAPER.node.handover_ns, "ns", MEASURED,
                "as in docs/paper.md: what one thread stores is seen by another one that looks, on two cores")

COSTS = (
    READ, DC, ECHO, DEVICE_READ, DEVICE_WRITE, DEVICE_DC, RECONNECT, SERVE, BYTES_S, PACKET, OVERHEAD, ENTRY,
    VERBS_CONNECT, LITE_CONNECT, PAIRS_S, META_BYTES, PROCESSES, SEND_ENTRY, SEND_ENTRIES, DONE_ENTRY, DONE_ENTRIES,
    PAIR_BYTES, DC_PAIRS, DC_BYTES, POOL_RUN, POOL_LINK, POOL_LIST, POOL_REQUEST, POOL_DONE, POOL_FIND,
    POOL_LOOKUP, HANDOVER,
)
