"""The restart of one logged topic: from "nobody here has it whole" to "its order goes on".

When: all members of the topic in the installed view became members without anybody to get its messages from. That is so
when a topic begins, after all nodes were down, and after its last holders left or died while the group lives. Then the
member among them that is first by rank, the *restorer*, makes itself whole; the others get everything from it, as from
any older member (`spindle.restart.catching_up`).

The steps, all within one view; a new view begins them anew:

    ask      all nodes of the view, members of the topic or not: what do you have on disk? (`Summary`)
    decide   the newest holders known to anybody must be here in sufficient number; the longest journal of their lives
             is the source (`chain.decide`). Otherwise wait for more nodes, and say whom for
    fill     what the own journal has beyond the prefix shared with the source is moved beside; what it lacks is
             fetched; all of it is on disk
    record   all nodes of the view that can keep a journal write down, durably, who goes on with the topic: those who
             held it before, and those who never did, so that none of them begins it anew one day
    settle   the own standing says: whole, one of the new holders, with the new life. Now delivery is released

A topic that has been declared anew in this group has no source, and nothing is filled: what is on disk stays as it is,
and counts, until all have written down that the topic begins anew. With `settle` it is put aside, by whoever looks at
it next and finds it older than its standing.

Why it is safe (the letters are those of docs/reliability.md):
- P1. What was acknowledged as persisted is on the disk of every holder. Any two majorities of the same holders meet, so
  a restart has somebody who knows of newer holders, if they were made by a restart (`record`) or by members that left
  in order (they write down who stays). Of the newest holders any one has all that was acknowledged.
- Journals of one life are prefixes of one sequence (virtual synchrony: D6, D8, D9), so the longest contradicts none.
- Until `settle` nothing of the new life is delivered, thus nothing can be lost with a node that dies in the middle: its
  standing is the old one, with a journal that became longer but not different, or says that it isn't whole. `record`
  names who had to know: if one of them doesn't, the new holders have never begun, and nobody waits for them.
- P4. View ids rise over restarts, since a node brings along the highest that its journals know when it joins.

- A node in whose group the topic goes on without it finds out who holds the topic, and writes it down
  (`spindle.restart.witness`). And while a restart waits for holders, all nodes there write down for which ones. So
  every node that was ever in a group with the topic, or with somebody who knows of it, knows that it exists; only among
  other nodes can it begin anew.

What majority doesn't cover: holders that shrink below a majority at once, because on one host the death of most of them
is certain (`spindle.membership`). The last one goes on, acknowledges alone, and dies too; the others don't know of it.
With `restart = "all"` they wait. With "majority" they go on, and its tail is moved beside when it comes back.

Rules: no clock, no disk, no socket. The driver calls the inputs, and carries out `take_actions()` in their order.
Answers to an earlier view's questions are ignored.
"""

from __future__ import annotations

import dataclasses
import enum

from spindle.restart.chain import Decision, Holders, Missing, Standing, Successor, Summary, decide, knows, readable


class Step(enum.Enum):
    """Where the restart stands."""

    IDLE = "idle"  # not begun
    ASKING = "asking"  # answers are missing
    WAITING = "waiting"  # all have answered, and it is not enough
    FILLING = "filling"  # the driver makes the own journal equal to the decision
    RECORDING = "recording"  # the other nodes write down who goes on
    SETTLING = "settling"  # the driver writes the own standing
    DONE = "done"  # whole


@dataclasses.dataclass(frozen=True)
class Ask:
    """Ask the node (this one too) for its summary; call `heard`."""

    node_id: int
    view_id: int


@dataclasses.dataclass(frozen=True)
class Fill:
    """Make the own journal end with the decision's end, then call `filled`; `failed` if the source can't give it."""

    decision: Decision
    view_id: int


@dataclasses.dataclass(frozen=True)
class Record:
    """Have the node write down its successor, then call `recorded`."""

    node_id: int
    view_id: int
    successor: Successor


@dataclasses.dataclass(frozen=True)
class Settle:
    """Write the own standing, call `settled`, and go on with the topic. `renews`: then put the own journal aside."""

    standing: Standing
    renews: bool = False


@dataclasses.dataclass(frozen=True)
class Follow:
    """No restart: this member is whole, get everything from it."""

    node_id: int


Action = Ask | Fill | Record | Settle | Follow


class Restorer:
    """The restart of one topic, on its restorer. `mode` is the setting [journal] restart."""

    def __init__(self, node_id: int, mode: str = "majority") -> None:
        self.node_id, self.mode = node_id, mode
        self.step = Step.IDLE
        self.decision: Decision | None = None
        self._view_id = -1
        self._life = ""
        self._nodes: tuple[int, ...] = ()
        self._holders: Holders | None = None
        self._renewed_since: int | None = None
        self._answers: dict[int, Summary] = {}
        self._to_record: set[int] = set()
        self._missing: Missing | None = None
        self._on_disk = Standing()  # this node's, when the view began
        self._told: set[int] = set()  # nodes that were told in this view whom it waits for
        self._known: Successor | None = None  # holders that this node waited for, in whatever view
        self._actions: list[Action] = []

    def begin(self, group: str, view_id: int, nodes: tuple[int, ...], members: tuple[int, ...],
              renewed_since: int | None = None) -> None:
        """Begins in a newly installed view with these nodes, of which `members` are the topic's. `renewed_since`: see
        `chain.decide`."""
        if self.step in (Step.SETTLING, Step.DONE):
            return  # the standing is being written: the topic goes on whatever the view
        self._view_id, self._life, self._nodes = view_id, f"{group}.{view_id}", nodes
        self._holders, self._renewed_since = Holders(view_id, members), renewed_since
        self._answers, self._missing, self.decision = {}, None, None
        self._told = set()
        self._actions = [Ask(node_id, view_id) for node_id in nodes]
        self.step = Step.ASKING

    def heard(self, node_id: int, view_id: int, summary: Summary) -> None:
        """A node's answer."""
        if view_id != self._view_id or self.step not in (Step.ASKING, Step.WAITING) or node_id not in self._nodes:
            return
        self._answers[node_id] = summary
        if node_id == self.node_id:
            self._on_disk = summary.standing
        if summary.serving and node_id != self.node_id:
            self._actions, self.step = [Follow(node_id)], Step.IDLE
            return
        self._decide()

    def _decide(self) -> None:
        if len(self._answers) < len(self._nodes):
            return
        self._remember()
        chosen = decide(self._answers, self._life, self._view_id, self.mode, self._renewed_since)
        if isinstance(chosen, Missing):
            self._missing, self.step = chosen, Step.WAITING
            if chosen.holders is not None:
                self._tell(chosen.holders)
            return
        self.decision, self._missing, self.step = chosen, None, Step.FILLING
        if chosen.renews:  # what there is stays as it is, and counts, until all know that it won't any more
            self._record()
        else:
            self._actions.append(Fill(chosen, self._view_id))

    def _remember(self) -> None:
        """Adds the holders that this node waited for to its own answer: the node that told of them may be gone by now,
        and this node's disk may not have them yet."""
        mine = self._answers.get(self.node_id)
        if mine is not None and self._known is not None and not knows(mine.standing, self._known.holders):
            standing = dataclasses.replace(mine.standing, successor=self._known)
            self._answers[self.node_id] = dataclasses.replace(mine, standing=standing)

    def _tell(self, holders: Successor) -> None:
        """All nodes here write down who is waited for: without that, one that never heard of the topic would begin it
        anew when the others have gone again."""
        self._known = holders
        for node_id, one in self._answers.items():
            standing = self._on_disk if node_id == self.node_id else one.standing
            if one.problem or node_id in self._told:
                continue
            if not knows(standing, holders.holders):
                self._told.add(node_id)
                self._actions.append(Record(node_id, self._view_id, holders))

    def failed(self, view_id: int, reason: str) -> None:
        """The source can't give what it said that it has: decide without its journal."""
        if view_id != self._view_id or self.step is not Step.FILLING:
            return
        assert self.decision is not None and self.decision.source is not None
        source = self.decision.source
        self._answers[source] = dataclasses.replace(self._answers[source], problem=reason)
        self._decide()

    def filled(self, view_id: int) -> None:
        """The own journal is on disk up to the decision's end."""
        if view_id != self._view_id or self.step is not Step.FILLING:
            return
        self._record()

    def _record(self) -> None:
        assert self.decision is not None and self._holders is not None
        view_id, self.step = self._view_id, Step.RECORDING
        able = readable(self._answers) if self.decision.renews else [
            node_id for node_id, one in self._answers.items() if not one.problem]
        self._to_record = {*able} - {self.node_id}
        required = tuple(sorted({*self._to_record, self.node_id}))
        successor = Successor(self._holders, required, self.decision.renews)
        self._actions += [Record(node_id, view_id, successor) for node_id in sorted(self._to_record)]
        self._look()

    def recorded(self, node_id: int, view_id: int) -> None:
        """Another node has written down who goes on."""
        if view_id != self._view_id or self.step is not Step.RECORDING:
            return
        self._to_record.discard(node_id)
        self._look()

    def _look(self) -> None:
        if self._to_record:
            return
        assert self.decision is not None
        self.step = Step.SETTLING
        standing = Standing(self.decision.lives, self._holders, whole=True, seen_view=self._view_id)
        self._actions.append(Settle(standing, self.decision.renews))

    def settled(self) -> None:
        """The own standing is on disk."""
        self.step = Step.DONE

    @property
    def view_id(self) -> int:
        """Of the view in which it asks."""
        return self._view_id

    @property
    def troubled(self) -> list[int]:
        """While it waits: nodes that could not say what they have. Ask them again: a disk may get better."""
        if self.step is not Step.WAITING:
            return []
        return sorted(node_id for node_id, one in self._answers.items() if one.problem)

    def take_actions(self) -> list[Action]:
        """What the driver has to do now, in this order."""
        actions, self._actions = self._actions, []
        return actions

    def awaiting(self) -> str:
        """For people: what the restart waits for, to be said behind "waits for"."""
        if self.step is Step.ASKING:
            late = [node_id for node_id in self._nodes if node_id not in self._answers]
            return f"the answer of node{'s' if len(late) > 1 else ''} {', '.join(map(str, late))} about its journal"
        if self.step is Step.WAITING and self._missing is not None:
            return self._missing.reason
        if self.step is Step.FILLING and self.decision is not None:
            return f"messages from the journal of node {self.decision.source}"
        if self.step is Step.RECORDING:
            return f"nodes {', '.join(map(str, sorted(self._to_record)))} to write down who goes on with it"
        return ""
