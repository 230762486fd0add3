"""What docs/paper-krcore.md says besides figures."""

from __future__ import annotations

OPENING = """
# The KRCore paper's evaluation

[Links](links.md) have the structure of KRCore ("KRCore: A Microsecond-scale RDMA Control Plane for Elastic Computing",
[USENIX ATC '22](https://www.usenix.org/conference/atc22/presentation/wei)), with a node's daemon in the place of its
kernel module. The paper measured ten machines with two processors of 12 cores and an InfiniBand of 100 Gb/s. This page
puts its figures beside what this project's pool comes to in virtual time. It is written by

```
spindle paper krcore
```

in some seconds; the same code gives the same figures, on any machine (bytes of memory: with the same Python and C
library). [paper.md](paper.md) does the same for the paper on which topics are built.

## What is played

What runs is the production code: `spindle_core/links` (pool, its user's end, lookups and directories) over the
simulated way of `spindle_core/fabric/regions`. A link is opened, found to need no connection, submits lists, and gets
its completions as in a node; a lookup really reads a directory, a message goes from box to box, and so do the answers
of pools. Around that is a model, and nothing else passes time:

- **The network.** A request takes half of an unloaded read to its target, waits there for the device and the port,
  and as long back. Requests of one connection keep their order. Over DC they cost the device more, and a DCQP
  connects anew for each change of its target.
- **The paper's structure** (column "model"). A program enters the kernel, where the pool does its work on the
  program's thread. Each program has a connection of its processor's own.
- **This project's structure** (last column). A program stores its requests where the pool sees them. One thread of
  the host drives the pool, which is awake; all programs share one connection to each host.

Not modelled: congestion and loss, caches of devices, the scheduling of threads, a pool's thread that sleeps, and what a
driver takes for each further request of a list. Opening the first link to a node is a request to the daemon over a Unix
socket, which is not in the last column (`spindle bench links` measures it); nor is the setting up of a data
connection, which nodes have already or make once. Nothing is random but the targets of Figure 14. The times of RDMA,
of DC and of the kernel are the model's: none of it was measured on RDMA hardware, which the project doesn't have.
"""

KINDS = """
## Kinds of figures

- **played**: the production pool ran; what happens is real, when it happens is the model's.
- **computed**: from the costs below alone; nothing ran.
- **calibrated**: a cost was taken from that very figure, so it comes out again and counts as no prediction. What it
  deviates by comes from the other costs.
- **given**: the figure is a cost itself.
- **counted**: something that happened so many times while the pool ran.
- **measured**: bytes that the real pool holds.

A deviation counts as a prediction where the kind is played or computed, and the paper's text says which figure belongs
to it.

Where the claim says "own", the last column is the nearest thing that this project has.
"""

OWN = """
- **A request.** A program's thread and the pool's are on two cores, so a read takes {read_daemon:.2f} us instead of
  {read:.2f}: no kernel is entered, and instead the request and its completion each go from one core to the other.
  That is so while the pool's thread is awake, which costs a core; otherwise the waking comes on top.
- **A connection.** Nodes are connected when their programs first need it, and a link is a place in a table. KRCore
  has to ask a meta server for a node that it doesn't know; a node here needs nothing like that, and looks up regions
  instead, by one read of their owner's directory in place of KRCore's two for metadata and two for a memory region.
  That read is of 2 KB, and the part of the pool's thread that handles it is Python, {python:.0f} us of {find:.0f}. So
  the {pools} pools that ask come to {find_rate:.1f} million lookups a second (Python alone would allow
  {by_python:.1f}), far below what the owner's port carries, which is {by_port:.1f} million. A region that the node
  knows takes {cached:.1f} us; a program that opens a link again, and has the region still, takes none of this.
- **A mesh.** A link reaches all ports of a node, so workers need one for each host: {mesh_links:,.0f} links instead
  of {mesh_all:,}. They are there after {mesh:.0f} us, nearly all of it Python for {mesh_reads:.0f} reads and the
  finds of what these read.
- **Memory.** A link holds {link_kb:.0f} KB: 12 for its completions, 8 for the pages that it shares with its program
  until messages come. The paper's 6.3 MB are its queue pairs alone, without the queues of each virtual one. One end
  of a connection holds {connection_kb:.0f} KB, for 1,024 requests on the way with up to 256 bytes each: more than a
  queue pair of LITE. A pool has at most 256 connections and 4,096 links, so 5,000 links are of two hosts here, and
  the paper's 5,000 nodes are out of reach; so is its mesh with a link for each pair of workers, 5,736 links of a
  host.
- **Answers.** A pool sends the messages of a link together if they go to the same link or port, and one such bundle
  is on the way at a time. A server that answers everybody by one link to their host would have one answer to it on
  the way; here it has a link for each of them, like KRCore's `qpop_msgs`.
"""

GUEST = """
`make rdma-test ARGS=links` runs pools over a device in software, on a guest, and asks the device:

| | queue pairs made | packets sent |
|---|---:|---:|
| 200 links are opened, and closed | 0 | 0 |
| a region is looked up: one read of the directory, with packets of 1 KB | 0 | 3 |
| the same by another link, while the node knows the region | 0 | 0 |
| a read of 8 bytes | 0 | 2 |

Times of such a device say nothing of hardware, so there are none.
"""

CONTRADICTIONS = """
- A connection is made "within 10 us, only 0.05% and 0.22% of the verbs and LITE" (1). 0.05% of 15.7 ms is 7.9 us and
  0.22% of 2 ms is 4.4 us; the measured 5.4 us (5.1) are 0.034% and 0.27%.
- "5,900X faster than verbs" (6): 15.7 ms over 5.4 us is 2,900.
- The control path is 15,700 times (1) and 7,850 times (2.3.1) slower than the data path, which is so for 1 us and for
  2 us; measured were 2.15 us (5.2), which gives 7,300. "22ms vs. 2 us in 2.3" (2.1): there it is 15.7 ms.
- Reads over DC and RC have a latency "27%-46%" and "25%-41%" higher than verbs (5.2), "up to 75%" (6). With one
  client they are 3.24 and 3.15 us against 2.15: 51% and 47%. The factor analysis has 2.14 us for verbs.
- A pool of each processor has 8 DCQPs (4.2), which makes 192 with 24 cores; the memory is that of 48 (5.2). 48 queue
  pairs with the queues of 2.3.2 have 7.1 MB; without completion queues 6.3. The introduction has 64 MB for the pool.
- The metadata of a node are 12 bytes, and 17 KB for 1,000 servers (4.2): 17 each, with the key perhaps.
- 5,000 queue pairs of 159 KB are 814 MB; 780 they are in units of 2^20 bytes.
- DC connects anew in "less than 1 us" (3). 64 reads over one DCQP take 99 us (5.2), which leaves about 1.7 us for
  each change of the target.
- 240 workers connect each with each other in 81 us (5.1): 57,360 connections, 700 million a second, of 22 million
  that the same section measures for one server; 0.34 us for each that a worker makes, of 0.9 us that a cached one
  takes. With LITE and verbs it takes 2.3 and 2.7 s, in which ten nodes make 16,400 and 19,200 queue pairs at 712 a
  second.
- With pools "larger than 2" DC beats RC "by 28-78%" (5.2). Read as a latency that is lower by so much, and from two
  DCQPs to eight, the model has the same. Which pools the two ends belong to the text doesn't say.
- Transfers between functions went "from 33.3 ms to 0.12 us" (1), which is far less than one read. 0.12 ms would fit.
- Copies are negligible below 1 KB (4.5), or up to 16 KB (5.2).
- The overhead of writes of more than 8 KB is negligible (5.2). The kernel's 0.9 us are 32% of a write of 8 KB on that
  link.
- 180 workers need 1.4 s with verbs and 1 s with LITE, "bottlenecked by RDMA's slow control path" (5.3.1). One queue
  pair of each at one server takes 0.25 s at 712 a second; how many each makes the paper doesn't say.
"""

REMARKS = """
- **22 million connections a second.** 240 clients that wait for nothing but their own two reads and the kernel
  connect {rate:.0f} million times a second, and the server's device would carry {device:.0f}. So something else holds
  the paper's back, which it doesn't name. Two reads of 260 bytes each would fill the server's port at 22 million;
  here they are of a line.
- **The mesh**, and **workers of a hash** with LITE and verbs: figures of the paper that don't go together, below.
- **Reads and echoes** are 5% slower than the paper's since the kernel's entry was taken from another figure, and this
  project's pool does its work besides: a run of it looks at all connections, which KRCore's need not.
- **Directory over RPC.** That a query costs the server's thread as much as an echo does is what the model says; the
  paper has FaSST do it, in the kernel.
"""

LEFT_OUT = """
- 33.7 million messages a second over KRCore, of 42.3 over verbs: that depends on how many messages come with one
  entry of the kernel, which the paper doesn't say.
- The tail of latencies (2.8, 3.8 and 6 us): the model has none.
- Messages without copies (Figure 9 (b)): the text has ratios alone, and no cost of a copy.
- LITE's data path (5.2 million reads a second): it ends with an error at seven threads, which is nothing to model.
- Throughput of the hash (26, 18 and 15 million): the text doesn't say what a request reads, and how many go together.
- Functions that pass data (Figure 12 (b)): these are containers of a platform that isn't here.
- What only the drawings show: they were not read off.
"""
