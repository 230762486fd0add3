"""Goal: nothing on the way from a writer to all readers depends on luck: not at the end of a view, not on what lies in
memory, not on how far counts have grown.

Method: scenarios S08, S14 to S19, S27, S34 and S35, each a script; where bytes must be seen that the protocol never
writes, the script puts them there. Every promise is checked after every event; a scenario adds what is particular about
it. Node 1 leads.
"""

from __future__ import annotations

import dataclasses
import itertools
import struct

import pytest

from spindle.errors import MembershipError
from spindle.group.topics import SIZE_MAX_LIMIT
from spindle.membership.codec import decode_proposal, decode_trim, encode_proposal, encode_trim
from spindle.membership.machine import Phase
from spindle.proto import node_pb2 as pb
from spindle.restart.pieces import CHUNK_COST_MAX, Cutter, Gatherer, Message
from spindle.transport.frames import HEADER, FrameDecoder, Limits
from spindle.transport.peers import FRAME_BYTES_MAX
from spindle_core.epoch import AREAS
from spindle_lab.sim import events as e
from spindle_lab.sim.fabrics import CopiedRows
from tests.spindle_lab.sim.scenarios.script import SUBGROUPS_OFFSET, Script

LINE = 64
DATA, NULL = 1, 2
COLUMNS = ("published", "received", "delivered")


@pytest.mark.parametrize("node", [1, 2])
def test_s08_what_was_committed_before_the_wedge_is_published_or_sent_again(node: int) -> None:
    """Setup: a change is under way. Script: the application commits three messages to the ring and one to an inbox; the
    predicate thread gets no turn any more before the node wedges. Expect: what was in the ring is published before
    counts freeze. The leader freezes first, so all others have its messages: they are delivered in the view that they
    were sent in. Of any other node the trim keeps none, and they are sent again as the first of the next view."""
    run = Script(3)
    number = run.view(1).view_id
    run.do(e.ROLE, 3, 0, 1)
    run.until(lambda: min(run.column(one, "prepared") for one in (1, 2, 3)) > 0)
    assert run.column(1, "wedged") == 0
    if node != 1:
        run.until(lambda: run.column(1, "wedged") > 0, 1)
    for _ in range(3):
        assert run.do(e.DIRECT, node, 0, 8)
    run.write(node, 2)
    direct = run.life(node).direct[1].sent
    assert run.counts(node, "published")[node - 1] == 0
    run.life(node).dirty = True
    while not run.column(node, "wedged"):
        assert run.do(e.CTL, node, 1)
    epoch = run.life(node).epoch
    assert epoch is not None
    assert run.counts(node, "published")[node - 1] == epoch.frozen_counts(node - 1, 1)[node - 1] == 3
    assert not run.do(e.DIRECT, node, 0, 8), "and nothing is claimed any more"
    run.until(lambda: run.view(1).view_id > number and run.phase(1) is Phase.STABLE)
    run.quiet()
    assert run.of_view(number) == (direct if node == 1 else [])
    assert run.of_view(number + 1) == ([] if node == 1 else direct) + run.sent(node)
    assert run.counter(node, "resent_messages") == (0 if node == 1 else 3)
    run.finish([1, 2, 3])


def test_s14_no_counter_is_ever_seen_torn() -> None:
    """Setup: two nodes with copies of each other's rows. Script: traffic and a change of roles; what node 1 pushes
    lands one line at a time, and node 2 looks after each. Expect: each counter has a value then that its owner has had,
    and never an earlier one than before; that is so because no 8-byte word is on two lines."""
    run = Script(2, fabric="copied", window=2)
    fabric = run.world.fabric
    assert isinstance(fabric, CopiedRows)
    rank = 0
    had: dict[str, set[int]] = {column: {0} for column in (*COLUMNS, "proposed", "committed")}
    seen = dict.fromkeys(had, 0)
    look_ups = 0

    def owner() -> None:
        for column in had:
            had[column].add(run.counts(1, column)[rank] if column in COLUMNS else run.column(1, column))

    number = run.view(1).view_id
    for turn in range(60):
        for event in ((e.WRITE, 1, 0, 2, 8), (e.WRITE, 2, 0, 1, 8), (e.STEP, 1), (e.CTL, 1, 1)):
            run.do(*event)
            owner()
        if turn == 40:
            run.do(e.ROLE, 2, 0, 1)
        while run.phase(1) is Phase.STABLE and run.view(1).view_id == number:
            head = fabric.network.head(0, 1)
            if head is not None and head[1] == "write":
                assert head[2] % 8 == 0, "words are whole"
                assert head[3] > LINE or head[2] // LINE == (head[2] + head[3] - 1) // LINE, "on one line"
            if not run.land(1, 2, 1):
                break
            for column in had:
                now = run.counts(2, column)[rank] if column in COLUMNS else run.seen(2, 1, column)
                assert now in had[column] and now >= seen[column], column
                seen[column] = now
            look_ups += 1
            run.do(e.STEP, 2)
        run.do(e.TURN, 2)
        run.land(2, 1, 1000)
        owner()
    assert look_ups > 100 and seen["published"] > 20
    run.finish([1, 2])


def test_s15_a_count_that_overtakes_its_slot_is_not_believed() -> None:
    """Setup: copied rows, a window of one slot that has been used; node 1's second message is on its way to node 2.
    Script: against what fabrics promise (a later write is never seen before an earlier one) the line with the count
    arrives before the slot. Expect: the stamp of the slot shows it: nothing is delivered, the damage is counted; once
    the slot is there it is delivered whole. The stamp is in the first line of a slot; that the others are there as well
    is the fabric's promise alone."""
    run = Script(2, fabric="copied", size_max=16, window=1)
    run.write(2, 1)
    run.write(1, 1)
    run.quiet()
    run.write(1, 1)
    run.do(e.STEP, 1)
    line = run.row(1, 1)[SUBGROUPS_OFFSET: SUBGROUPS_OFFSET + LINE]
    run.row(2, 1)[SUBGROUPS_OFFSET: SUBGROUPS_OFFSET + LINE] = line
    assert run.counts(2, "published")[0] == 2
    for _ in range(3):
        run.do(e.STEP, 2)
    assert min(run.counts(2, "received")) > run.counts(2, "delivered")[1], "so it may deliver"
    assert run.delivered(2) == [run.sent(1)[0], *run.sent(2)] and run.counter(2, "corrupt_slots") > 0
    run.do(e.LAND, 0, 0, 0)
    run.do(e.STEP, 2)
    assert run.delivered(2)[2:] == run.sent(1)[1:]
    run.finish([1, 2])


def test_s16_a_null_takes_no_claimed_slot_and_waits_for_no_claim() -> None:
    """Setup: two nodes; node 1's application has claimed a message and not filled it, another one has committed one to
    the ring that is not published yet. Script: node 2 sends four messages, so that node 1 owes nulls. Expect: the nulls
    go behind what was claimed; nobody waits for the application: its claim is open in its inbox only, and takes an
    index of the order when it is committed."""
    run = Script(2, window=8)
    run.write(1, 1)
    run.quiet()
    assert run.do(e.CLAIM, 1, 0, 0)
    assert run.do(e.DIRECT, 1, 0, 8)
    run.write(2, 4)
    run.do(e.STEP, 2)
    run.quiet()
    direct = run.life(1).direct[1].sent
    sent = run.sent(2)
    assert run.delivered(2)[1:] == [sent[0], *direct, *sent[1:]]
    assert run.do(e.CLAIM, 1, 0, 1)
    run.quiet()
    assert run.delivered(1)[-1] == run.sent(1)[-1]
    run.finish([1, 2])


def test_s16_a_claim_that_is_never_filled_stops_nobody() -> None:
    """Setup: node 1's application has claimed a message. Script: the view changes; then the application dies. Expect:
    the wedge does not wait for it, the claim is still good in the next view, and what was not committed is never
    sent."""
    run = Script(3)
    assert run.do(e.CLAIM, 1, 0, 0)
    number = run.view(1).view_id
    run.do(e.ROLE, 3, 0, 1)
    run.until(lambda: run.view(1).view_id > number and run.view(2).view_id > number)
    assert run.do(e.CLAIM, 1, 0, 1)
    run.quiet()
    assert run.delivered(2) == run.sent(1)
    assert run.do(e.CLAIM, 1, 0, 0) and run.do(e.CLAIM, 1, 0, 3)
    run.write(2, 2)
    run.quiet()
    assert run.delivered(1)[1:] == run.sent(2)
    run.finish([1, 2, 3])


def test_s17_nobody_reads_more_of_a_null_than_that_it_is_one() -> None:
    """Setup: node 1 has filled its ring before. Script: it owes three nulls, and publishes them as one run: only the
    first slot is written. All else in that slot and in the two that belong to the run too is garbage. Expect: nobody
    takes offence, nothing of it is delivered, and the ring goes on where the run ends."""
    run = Script(3, window=4)
    run.write(1, 4)
    run.quiet()
    before = len(run.delivered(1))
    run.write(2, 4)
    for node in (2, 1, 1):
        run.do(e.STEP, node)
    row, slots = run.row(1, 1), [run.slot(index, senders=3, window=4) for index in (4, 5, 6)]
    index, _, kind, _, nulls = struct.unpack_from("<QIHHQ", row, slots[0])
    first = run.counts(1, "published")[0] - 3
    assert run.counts(2, "delivered")[1] < 3 * (first + 3)
    assert (index, kind, nulls) == (first, NULL, 3) and first % 4 == 0
    row[slots[0] + 8: slots[0] + 12] = b"\xff" * 4
    row[slots[0] + 24: slots[0] + 128] = b"\xff" * 104
    for place in slots[1:]:
        row[place: place + 128] = b"\xff" * 128
    run.quiet()
    assert run.delivered(1)[before:] == run.delivered(3)[before:] == run.sent(2)
    assert not any(run.counter(node, "corrupt_slots") for node in (1, 2, 3))
    run.write(1, 4)
    run.finish([1, 2, 3])


@pytest.mark.parametrize("order", [1, -1])
def test_s18_one_busy_sender_among_many_waits_for_two_sweeps(order: int) -> None:
    """Setup: five, or twelve, nodes that are all senders. Script: the last of them sends one message; pass after pass
    of all nodes in either direction. Expect: delivered everywhere after as many passes with twelve as with five: one
    for the message, one for all nulls, and what one pass has decided is on its way with the next. Nulls answer a
    message, never one another."""
    needed = []
    for nodes in (5, 12):
        run = Script(nodes)
        run.write(nodes, 1)
        for sweep in itertools.count(1):
            assert sweep < 20
            for node in range(1, nodes + 1)[::order]:
                run.do(e.STEP, node)
            if all(len(run.delivered(node)) == 1 for node in range(1, nodes + 1)):
                break
        needed.append(sweep)
        run.finish(list(range(1, nodes + 1)))
    assert needed[0] == needed[1] <= 5


@pytest.mark.parametrize("writes", [3, 4])
def test_s19_a_post_that_never_completes_holds_up_nobody(writes: int) -> None:
    """Setup: copied rows; the predicate thread of node 1 sleeps, so who writes publishes by himself. Script: node 3 is
    gone, and what is posted to it vanishes without a completion; the application goes on writing, then the view
    changes. Expect: nothing waits for a post: the writer has its slots until the window is full, then it is told so; in
    the row that is frozen for the trim nothing changes any more; everything is delivered in the next view."""
    run = Script(3, fabric="copied")
    fabric = run.world.fabric
    assert isinstance(fabric, CopiedRows)
    assert run.do(e.SLEEP, 1)
    assert run.do(e.CRASH, 3, 0)
    lost = fabric.network.counts()["dropped"]
    for _ in range(writes):
        assert run.do(e.DIRECT, 1, 0, 8)
    assert writes < 4 or not run.do(e.DIRECT, 1, 0, 8), "the window is full"
    run.suspect(1, 3)
    run.until(lambda: run.column(1, "wedged") > 0)
    frozen = run.counts(1, "published")
    assert frozen[0] == writes
    assert not run.do(e.DIRECT, 1, 0, 8)
    run.do(e.STEP, 1)
    assert run.counts(1, "published") == frozen
    run.until(lambda: run.view(1).rank_of(3) is None)
    assert fabric.network.counts()["dropped"] >= lost
    run.quiet()
    delivered = [entry[3] for one in run.world.check.sequences.values() for entry in one.entries]
    assert delivered == run.life(1).direct[1].sent
    run.finish([1, 2])


@pytest.mark.parametrize("lines", range(7))
def test_a_count_never_travels_with_an_earlier_post(lines: int) -> None:
    """Found by a seed. Setup: copied rows; node 1's first message is published, and not delivered yet. Script: it
    publishes a second one, in a pass that begins with a push of its columns, because it wants to be rung for the first;
    so many lines of what it posts reach the others, then it dies. Expect: a post reads the row when it is handed over,
    so the early one must be gone before the count grows: whoever sees the count has the slot, and the trim finds no
    damage."""
    run = Script(3, fabric="copied")
    run.write(1, 1)
    run.do(e.STEP, 1)
    run.do(e.LAND, 0, 0, 0)
    run.write(1, 1)
    run.do(e.STEP, 1)
    for node in (2, 3):
        for _ in range(lines):
            run.land(1, node, 1)
            published = run.counts(node, "published")[0]
            stamps = [struct.unpack_from("<QIH", run.row(node, 1), run.slot(index, senders=3, window=4))
                      for index in range(published)]
            assert [(index, kind) for index, _, kind in stamps] == [(index, DATA) for index in range(published)]
    assert run.do(e.CRASH, 1, 1), "and the rest is lost"
    run.until(lambda: run.view(2).rank_of(1) is None)
    assert not run.counter(2, "corrupt_slots") and not run.counter(3, "corrupt_slots")
    run.finish([2, 3])


@pytest.mark.parametrize("boundary", [1 << 31, 1 << 32, 1 << 33, 1 << 40])
def test_s27_counts_do_not_wrap(boundary: int) -> None:
    """Setup: all senders declare a silence of nearly so many rounds, so that indices, and with three senders sequence
    numbers before them, stand just below 2 ** 31, 2 ** 32 and so on. Script: they write across it, and the view changes
    in the middle. Expect: order, slots, trim and acknowledgements are what they are with small numbers."""
    run = Script(3, window=8)
    for rounds in (boundary // 3 - 3, boundary - boundary // 3 - 3):
        for node in (1, 2, 3):
            assert run.do(e.SILENCE, node, 0, rounds)
        run.quiet()
        for node in (1, 2, 3):
            run.write(node, 4)
        run.quiet()
        assert len(run.delivered(1)) in (12, 24)
    numbers = [entry[0] for one in run.world.check.sequences.values() for entry in one.entries]
    assert numbers == sorted(numbers) and numbers[0] < boundary < numbers[11] + 100
    assert numbers[-1] >= 3 * (boundary - 8)
    for node in (1, 2, 3):
        run.write(node, 4)
    number = run.view(1).view_id
    run.do(e.LEAVE, 3)
    run.until(lambda: run.life(3).end == "left" and run.view(1).view_id > number)
    assert max(run.world.check.trims[run.view(1).group_id, number][1]) > boundary - 8
    run.finish([1, 2])


@pytest.mark.parametrize("size", [0, -1])
def test_s34_the_largest_and_the_smallest_messages_pass_a_change_of_view(size: int) -> None:
    """Setup: messages of the greatest size that the topic allows, or of none; the reader of node 2 takes nothing, so
    that the trim finds its log full; node 3 commits to another topic after the leader has frozen its counts. Script:
    the view changes. Expect: what is below the trim is kept for the reader, what is beyond it is sent again, and both
    are as they were: nothing is wrapped into something larger on the way."""
    run = Script(3, small_logs=True, size_max=300, topics=2)
    number = run.view(1).view_id
    assert run.do(e.SLOW, 2, 0, 1)
    for _ in range(100):
        run.do(e.WRITE, 1, 0, 4, size)
        run.turns(2)
    run.do(e.ROLE, 2, 1, 1)
    run.until(lambda: min(run.column(one, "prepared") for one in (1, 2, 3)) > 0)
    run.until(lambda: run.column(1, "wedged") > 0, 1)
    for _ in range(3):
        assert run.do(e.DIRECT, 3, 1, size)
    run.until(lambda: run.view(2).view_id > number)
    assert run.world.probes["trim met a full log"] and run.life(2).readers[1].backlog
    run.do(e.SLOW, 2, 0, 0)
    run.quiet()
    assert run.counter(3, "resent_messages") == 3
    assert run.of_view(number + 1, 2) == run.life(3).direct[2].sent
    assert run.of_view(number)
    assert set(map(len, run.of_view(number) + run.of_view(number + 1, 2))) == {300 if size else 0}
    run.finish([1, 2, 3])


def test_s34_a_message_of_any_size_travels_in_small_frames() -> None:
    """The same for the way over a connection: a message of the greatest size that any topic may have comes out of its
    history whole, and no frame that brings a piece of it is large, whatever is said about it."""
    message = Message(bytes(SIZE_MAX_LIMIT), 2**32 - 1, 2**64 - 1, 2**64 - 1, 2**64 - 1, 0xFFFF, 2**64 - 1, 2**32 - 1,
                      0xFF)
    following = iter([message])
    cutter, gatherer = Cutter(lambda: next(following, None)), Gatherer("t", SIZE_MAX_LIMIT)
    got, more = [], True
    while more:
        chunk = pb.HistoryChunk(number=2**64 - 1)
        more = cutter.fill(chunk)
        assert pb.PeerMessage(history=chunk).ByteSize() < CHUNK_COST_MAX + 200 < FRAME_BYTES_MAX
        got += gatherer.take(chunk)
    assert got == [message]


@pytest.mark.parametrize("length", [0xFFFFFFFF, 0xFFFFFFF0, 0x80000000, 0x7FFFFFFF, AREAS["proposal"][1] + 1])
def test_s35_a_length_out_of_another_s_memory_is_checked_before_it_is_used(length: int) -> None:
    """Setup: node 1's proposal is on its way to node 2. Script: what arrives says an impossible length, up to those
    that with a header overflow 32 bits or are negative with a sign. Expect: node 2 reads nothing and acknowledges
    nothing; it goes on as soon as the right bytes are there. The same for a message in a slot."""
    run = Script(2, fabric="copied")
    run.do(e.ROLE, 1, 0, 1)
    run.hold(1, 2)
    run.until(lambda: run.column(1, "acked") > 0, 1)
    run.push(1)
    row, area = run.row(2, 1), AREAS["proposal"][0]
    before = bytes(row[area: area + 16])
    row[area: area + 16] = struct.pack("<QII", 2, length, 0)
    row[LINE: 3 * LINE] = run.row(1, 1)[LINE: 3 * LINE]
    assert run.seen(2, 1, "proposed") == run.column(1, "proposed")
    run.life(2).dirty = True
    run.turns(3, 2)
    assert run.column(2, "acked") == 0
    row[area: area + 16] = before
    run.release(1, 2)
    run.quiet()
    assert run.column(2, "acked") == 0 and 1 not in run.view(2).topics[0].senders, "another view by now"
    run.write(2, 1)
    run.do(e.STEP, 2)
    run.do(e.LAND, 0, 0, 0)
    place = run.slot(0, senders=1, window=4)
    right = bytes(run.row(1, 2)[place: place + 16])
    assert struct.unpack_from("<QI", right) == (0, 8)
    run.row(1, 2)[place + 8: place + 12] = struct.pack("<I", length)
    run.turns(2, 1)
    assert run.delivered(1) == [] and run.counter(1, "corrupt_slots") > 0
    run.row(1, 2)[place: place + 16] = right
    run.finish([1, 2])


def test_s35_decoders_refuse_what_lies_about_its_length() -> None:
    """The same for bytes that come over connections or lie in areas: every frame header with an impossible length,
    every view and trim with one byte of a length changed or cut off anywhere, is refused with an error of ours or
    decoded as something else that is whole; nothing is allocated for a length that was only claimed."""
    run = Script(2)
    view = run.view(1)
    base = dataclasses.replace(view, view_id=view.view_id - 1, members=(), topics=())
    run.world.close()
    for length in (FRAME_BYTES_MAX + 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF):
        decoder = FrameDecoder(Limits(frame_bytes_max=FRAME_BYTES_MAX))
        with pytest.raises(Exception, match="bytes"):
            decoder.feed(HEADER.pack(length, 0, 0), [])
    for data, decode in ((encode_proposal(view, base, 9), lambda data: decode_proposal(data, base, 9)),
                         (encode_trim(5, {1: (3, 2**40)}), decode_trim)):
        for place in range(len(data)):
            for byte in (0x7F, 0x80, 0xFF):
                for wrong in (data[:place], data[:place] + bytes([byte]) + data[place + 1:]):
                    try:
                        decode(wrong)
                    except (MembershipError, ValueError):
                        pass
