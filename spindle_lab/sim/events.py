"""What can happen in a run. An event is a tuple: its kind, then plain values.

Why tuples: a run is kept, replayed, shrunk and printed as a list of them.

Rules: an event that is impossible when its turn comes (its node is dead, its queue is empty) does nothing and counts
for nothing, so that any event can be left out of a run. A node is named by its id, which means its present life.
"""

from __future__ import annotations

from typing import Any

Event = tuple[Any, ...]

# --- the nodes work
STEP = "step"  # node: one pass over the predicates
SLEEP = "sleep"  # node: announce sleep, look once more; from then on it runs only when it was rung
CTL = "ctl"  # node, n: the control thread carries out up to n actions of the machine
SPLIT = "split"  # node, k, events: as ctl, but before its k-th store into the row the others do `events`
RECV = "recv"  # node, n: it takes the first thing from the n-th of the connections that hold something
TURN = "turn"  # node: everything it has to do, at once
LOOK = "look"  # node: its timers that are due
TICK = "tick"  # ns: time passes

# --- applications
WRITE = "write"  # node, topic, n, size: up to n messages through an inbox (size -1: the largest allowed)
DIRECT = "direct"  # node, topic, size: a slot of the own ring
HOLD = "hold"  # node, topic, size: a slot of the own ring is claimed and left open; or the open one is filled
FILL = "fill"  # node, topic: the open one is filled, if there is one
SILENCE = "silence"  # node, topic, rounds: declared in advance
CLAIM = "claim"  # node, topic, how: 0 claim, 1 commit, 2 abort, 3 die with the claim open
READ = "read"  # node, topic, n: a slow reader takes n
SLOW = "slow"  # node, topic, slow: its reader takes nothing by itself any more, or again
ROLE = "role"  # node, topic, role: 0 out, 1 member, 2 sender
PERSIST = "persist"  # node, topic: its journal has everything so far on disk

# --- members come and go
START = "start"  # node: a new life
LEAVE = "leave"  # node
SCAN = "scan"  # node: looks for members to join, or forms the group

# --- faults
CRASH = "crash"  # node, certain: its process ends; 0: others see that it has ended only later
CRASH_IN = "crash_in"  # node, k, certain: ... before its k-th store into its row, in the middle of the machine's work
PAUSE = "pause"  # node
RESUME = "resume"  # node
ACCUSE = "accuse"  # node, other: it suspects the other without a reason
CLOCK = "clock"  # node, ns: its clock jumps
OVERDUE = "overdue"  # node: it has waited long enough for the view that is being prepared
CUT_LINK = "cut_link"  # node, other: their connection breaks, their memory does not
CLOG = "clog"  # node, other: what the one writes doesn't reach the other until...
UNCLOG = "unclog"  # node, other
PART = "part"  # bits of nodes: these and the others don't reach each other, neither rows nor connections; 0: all do
# number, number, lines: so many lines of what the first life has written reach the second; 0: everything reaches all;
# below 0: so many, first of what goes ahead of the rest
LAND = "land"

FAULTS = frozenset((CRASH, CRASH_IN, PAUSE, ACCUSE, CLOCK, OVERDUE, CUT_LINK, CLOG, PART))
