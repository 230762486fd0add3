"""The membership machine of one node: its inputs and outputs, and what nodes wish of each other.

Why sans-IO: the node and the simulator drive the same code. It reads no clock, and does nothing by itself: inputs are
its methods, outputs `take_actions()` and the own row. The rules by which one view follows another are in
`spindle.membership.rules`; how a node gets in is in `outside`.

Rules for the driver: after every input, and whenever the table has changed, call `step()`, then carry out the actions,
until there are none. While `in_minority`, wait a little to learn that missing members have ended (`ended()`), then call
`give_up()`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from spindle.errors import CastOut, JoinFailed, NodeIdTaken, NoMajority, SpindleError, error_to_wire
from spindle.group.topics import TopicSpec
from spindle.group.view import Member, View
from spindle.membership import messages as m
from spindle.membership.left_out import left_out
from spindle.membership.outside import Outside
from spindle.membership.participants import Participants
from spindle.membership.plan import fulfilled
from spindle.membership.rules import REJOIN, Gone, Phase
from spindle.membership.table import Table

__all__ = ["Machine", "Phase"]

REFUSED_MAX = 4096  # wishes of others whose refusal is remembered


class Machine(Outside):
    """The machine of one node. Start with `form()` (alone) or `seek()` (told a view by a member)."""

    # --- inputs

    def form(self, group_id: int) -> None:
        """Becomes the only member of a new group."""
        first = View(group_id, self.me.view_floor, (self.me,), settings=self.settings)
        self.view = View(group_id, first.view_id - 1)
        self._decide(first, ballot=1)
        self._act(m.Prepare(first, 1))
        self._act(m.Install(first))
        self.phase = Phase.INSTALLING

    def declare(self, spec: TopicSpec) -> int:
        """Wishes that the topic exists; returns the request id. Fulfilled when an installed view has the topic."""
        return self._wish(spec)

    def delete(self, deletion: m.Deletion) -> int:
        """Wishes that a topic is no more, or not what it is; returns the request id. Refused if somebody has a part in
        it."""
        return self._wish(deletion)

    def take_role(self, role: m.Role) -> int:
        """Wishes to have this part in a topic, and replaces an earlier wish about it; returns the request id."""
        for request_id, wish in list(self._own.items()):
            if isinstance(wish, m.Role) and wish.topic == role.topic:
                del self._own[request_id]
        return self._wish(role)

    def _wish(self, wish: m.Wish) -> int:
        self._request_id += 1
        self._own[self._request_id] = wish
        self._tell_leader()
        return self._request_id

    def gathered(self) -> None:
        """The driver has carried out Gather."""
        if self._gathering:
            self._gathering = False

    def prepared(self, ballot: int) -> None:
        """The driver has carried out the Prepare of this ballot."""
        if ballot != self.ballot:
            return
        if self.phase is Phase.ADMITTED:
            assert self.next_view is not None and self._asked is not None
            self._act(m.Send(self._asked[0], m.Prepared(self.next_view.view_id, ballot)))
        elif self.phase is Phase.PREPARING:
            assert self._table is not None
            self._table.set("prepared", ballot)
            self._table.push()
            self.phase = Phase.PREPARED

    def installed(self, table: Table | None) -> None:
        """The driver has carried out Install; `table` is that of the new epoch."""
        assert self.next_view is not None and table is not None
        self.view, self.next_view = self.next_view, None
        self.ballot = 0
        self._table, self._participants = table, Participants(table)
        self.phase = Phase.STABLE
        table.set("installed", self.view.view_id + 1)
        if self.leaving:
            table.set("leaving", 1)
        table.push()
        self._revised()
        self._together = self._together or bool(self._wishes.asking_for_roles)  # during the change
        self._dead = {life: gone for life, gone in self._dead.items() if life[0] in self.view.node_ids}
        for member in self.view.members:
            if self._is_dead(member):  # the decision stood although it died
                self._part_with(member)
        if not self.is_leader:
            self._wishes.topics.clear()  # kept in case this node leads: only for the view in which they were told
        self._told.clear()
        self._tell_leader()
        deferred, self._deferred = self._deferred, []
        for node_id, message in deferred:
            self.receive(node_id, message)

    def _revised(self) -> None:
        """The view's topics have changed: drops the wishes that it fulfils."""
        assert self.view is not None
        self._wishes.drop_fulfilled(self.view)
        self._own = {
            request_id: wish
            for request_id, wish in self._own.items()
            if not fulfilled(self.view, self.me.node_id, wish) or isinstance(wish, TopicSpec)
        }
        self._settle_declarations()

    def _settle_declarations(self) -> None:
        """Our declarations of topics that exist now are fulfilled, or refused if the topic is defined otherwise."""
        assert self.view is not None
        for request_id, wish in list(self._own.items()):
            topic = self.view.topic(wish.name) if isinstance(wish, TopicSpec) else None
            if topic is not None and isinstance(wish, TopicSpec) and self.view.declares(wish.name):
                del self._own[request_id]
                try:
                    topic.spec.check_same(wish)
                except SpindleError as error:
                    self._act(m.Rejected(request_id, *error_to_wire(error)))

    def peer_gone(self, member: Member, left: bool = False, why: str = "", ended: bool = True) -> None:
        """The connection to this node ended. `left`: it said before that it has left in order, so all it owes is in its
        row. `ended`: it is certain that this life of it never acts again, and that its row is all it left behind.
        `why`: what it said of its end, or what is known of it."""
        if self.phase is Phase.GONE or member.node_id == self.me.node_id:
            return
        at_home = self.view.member(member.node_id) if self.view is not None else None
        left = left and at_home is not None and at_home.life == member.life  # from outside there is nothing to leave
        known = self._dead.get(member.life)
        if known is not None:  # suspected before: now we know better
            left, ended, why = left or known.left, ended or known.ended, known.why
        self._dead[member.life] = Gone(left, ended or left, why)
        self._wishes.drop(member)
        self._deferred = [one for one in self._deferred if one[0] != member.node_id]
        if self.phase is Phase.OUTSIDE:
            if self._asked == member.life:
                self._asked = None
                if self.view is not None:
                    self._ask()
        elif self.phase is Phase.ADMITTED:
            if self._admission_is_void():
                self._back_outside()
        elif self._table is not None:
            self._part_with(member)

    def suspect(self, node_id: int, why: str) -> None:
        """This member of the installed view doesn't answer. That is not certain, and never taken back."""
        member = self.view.member(node_id) if self.view is not None else None
        if member is not None and self._table is not None and not self._is_dead(member):
            self.peer_gone(member, why=why, ended=False)

    def ended(self, node_id: int) -> None:
        """The process of a node that is gone or suspected has ended: it is certain now."""
        member = self.view.member(node_id) if self.view is not None else None
        if member is not None and self._is_dead(member):
            self.peer_gone(member, ended=True)

    def unreachable(self, node_id: int) -> None:
        """There is no connection to this node: one that was asked to let this node in, or a joiner that is late."""
        for view in (self.view, self.next_view):
            member = view.member(node_id) if view is not None else None
            if member is not None and not self._is_dead(member):
                self.peer_gone(member, why="there is no connection to it", ended=False)
                return

    def may_suspect(self, node_ids: set[int]) -> bool:
        """True if a majority would remain without these members, too."""
        if self._participants is None or self.view is None:
            return False
        ranks = [rank for rank in map(self.view.rank_of, node_ids) if rank is not None]
        return self._participants.has_majority(without=sum(1 << rank for rank in ranks))

    def is_near(self, node_id: int) -> bool:
        """True if this member of the installed view is on this node's host."""
        member = self.view.member(node_id) if self.view is not None else None
        return member is not None and member.host == self.me.host

    def to_suspect(self, late: set[int]) -> set[int]:
        """Whom to suspect now of the members that give no sign of life: all, if a majority remains without them; else
        those on other hosts, if a majority remains without those. A member that hangs on this host may still go on."""
        if self.may_suspect(late):
            return late
        far = {node_id for node_id in late if not self.is_near(node_id)}
        return far if self.may_suspect(far) else set()

    @property
    def in_minority(self) -> bool:
        """True while too many are suspected to go on: nothing happens until some of them are known to have ended."""
        return self._participants is not None and not self._participants.has_majority()

    def give_up(self, silent: Collection[int] = ()) -> None:
        """Stops this node if it is in a minority, or would be without the members `silent`. These are on other hosts,
        and silent for so long that this node must take itself for cut off. It suspects none of them: they may live, and
        would obey the suspicion."""
        if self._participants is None or self.may_suspect(set(silent)):
            return
        assert self.view is not None
        live = [rank for rank in self._participants.live if self.view.members[rank].node_id not in silent]
        missing = ", ".join(f"{one} ({self._dead[one.life].why})" if self._is_dead(one) else str(one)
                            for rank, one in enumerate(self.view.members) if rank not in live)
        self._fail(NoMajority(
            f"only {len(live)} of {len(self.view.members)} members of view {self.view.view_id} answer, which is no "
            f"majority: the others may go on without this node, so it has stopped. Missing: {missing}. Start it "
            "again when it can reach them"))

    def _part_with(self, member: Member) -> None:
        """A dead member of the installed view takes no part in it any more."""
        if self._participants is None:
            return  # the end of one before it was this node's, too
        assert self.view is not None
        rank = self.view.rank_of(member.node_id)
        if rank is None or self.view.members[rank].incarnation != member.incarnation:
            return
        gone = self._dead[member.life]
        if gone.left and self.phase is not Phase.ECHOED:
            # A member that leaves in order has waited for the echoes of all it took for live: not of this node.
            self._fail(CastOut(f"{member} has left in order without this node's consent, so the others go on without "
                               f"it, and it has stopped; {REJOIN}"))
        elif gone.left:
            self._participants.depart(rank)
            self._tell_leader()
        elif self._participants.suspect(rank):
            self._suspected(rank, gone.why)
        if gone.ended and self._participants is not None:
            self._participants.end(rank)

    def _suspected(self, rank: int, why: str) -> None:
        assert self.view is not None
        member = self.view.members[rank]
        self._dead.setdefault(member.life, Gone(False, False, why))
        self._wishes.drop(member)
        self._act(m.Cut(member.node_id, rank, why))
        self._tell_leader()

    def receive(self, node_id: int, message: m.Message) -> None:
        """A message from a connected node."""
        if self.phase is Phase.GONE:
            return
        if isinstance(message, m.CurrentView):
            self.seek(message.view)
        elif isinstance(message, m.Admission):
            self._admitted(node_id, message)
        elif isinstance(message, m.Installed):
            self._begin(message)
        elif isinstance(message, m.Rejection):
            self._rejected(node_id, message)
        elif isinstance(message, m.Prepared):
            if message.ballot == self.ballot:
                self._joiners_prepared.add(node_id)
        elif isinstance(message, m.Lacking):
            if message.ballot == self.ballot and self.next_view is not None and self.next_view.member(node_id):
                self._lacks[node_id] = dict(message.lacks)
        elif isinstance(message, m.LeftOut):
            self._told_to_stop(node_id, message)
        elif self._table is None or self.view is None:
            self._deferred.append((node_id, message))
        elif isinstance(message, m.JoinRequest) and message.group_id != self.view.group_id:
            self._act(m.Send(node_id, m.CurrentView(self.view)))  # it knows this node from a group that has ended
        elif message.view_id > self.view.view_id:
            self._deferred.append((node_id, message))
        else:
            # Kept even if another member leads: the sender may suspect it already, and has sent this nowhere else.
            self._take_wish(node_id, message)
            if isinstance(message, m.JoinRequest) and not self.is_leader:
                self._act(m.Send(node_id, m.CurrentView(self.view)))

    def _rejected(self, node_id: int, message: m.Rejection) -> None:
        """Only those may refuse who were asked: the leader that a joiner has asked to be let in, or a fellow member."""
        if message.request_id == 0:
            asked = self._asked is not None and self._asked[0] == node_id
            if not asked or self.phase not in (Phase.OUTSIDE, Phase.ADMITTED):
                return
            self.phase = Phase.GONE
        elif self.view is None or self.view.rank_of(node_id) is None or message.request_id > self._request_id:
            return
        self._own.pop(message.request_id, None)
        self._act(m.Rejected(message.request_id, message.kind, message.text))

    def _take_wish(self, node_id: int, message: m.JoinRequest | m.TopicRequest) -> None:
        assert self.view is not None
        if isinstance(message, m.TopicRequest):
            member = self.view.member(node_id)
            refused = self._refused.get((member.life, message.request_id)) if member is not None else None
            if refused is not None:  # told again before the refusal had come: it must not be granted later
                self._act(m.Send(node_id, refused))
            elif member is not None:
                self._wishes.add(node_id, message)
            return
        same_id = self.view.member(message.member.node_id)
        if same_id is not None and same_id.incarnation != message.member.incarnation and not self._is_dead(same_id):
            text = f"node id {same_id.node_id} is taken by pid {same_id.pid}; choose another, or 0 for the lowest free"
            self._act(m.Send(node_id, m.Rejection(0, NodeIdTaken.__name__, text)))
        elif same_id is None or same_id.incarnation != message.member.incarnation:
            if same_id is None:
                self._dead.pop(message.member.life, None)  # it was connected before, and left out
            self._wishes.joins[node_id] = message.member
            self._wishes.propose(message.settings)

    # --- outputs

    def take_actions(self) -> list[m.Action]:
        """What the driver has to do now, in this order."""
        actions, self._actions = self._actions, []
        return actions

    def awaiting(self) -> str:
        """For people: what the node is waiting for, empty if for nothing."""
        if self.phase is Phase.OUTSIDE:
            return "a member's answer"
        if self._table is None or self.phase in (Phase.STABLE, Phase.GONE, Phase.INSTALLING):
            return "the word to install" if self.phase is Phase.ADMITTED else ""
        column = {
            Phase.ACKNOWLEDGED: "acked", Phase.PREPARING: "prepared", Phase.PREPARED: "prepared",
            Phase.WEDGED: "wedged", Phase.ECHOED: "trim_echoed",
        }[self.phase]
        least = 1 if column == "trim_echoed" else self.ballot
        assert self.view is not None and self.next_view is not None and self._participants is not None
        late = [str(self.view.members[rank]) for rank in self.live_ranks() if self._table.get(rank, column) < least]
        late += [str(self.view.members[rank]) for rank in self._participants.behind_barrier()]
        if column == "prepared":
            late += [str(joiner) for joiner in self._joiners() if joiner.node_id not in self._joiners_prepared]
        return f"view {self.next_view.view_id}" + (f": {column} by {', '.join(late)}" if late else "")

    # --- a view that can't be prepared

    def lacks(self, ballot: int, lacks: Mapping[int, str]) -> None:
        """The driver has waited long for the memory of these nodes to prepare this ballot, and says what it knows of
        why. Tells the leader."""
        if ballot != self.ballot or self.next_view is None:
            return
        message = m.Lacking(self.next_view.view_id, ballot, tuple(sorted(lacks.items())))
        if self.phase is Phase.ADMITTED and self._asked is not None:
            self._act(m.Send(self._asked[0], message))
        elif self.phase is Phase.PREPARING and self.is_leader:
            self._lacks[self.me.node_id] = dict(lacks)
        elif self.phase is Phase.PREPARING and self.view is not None:
            leader = self.view.members[self.leader_rank]
            self._act(m.Send(leader.node_id, message, leader.incarnation))

    def leave_out(self, ballot: int, again: bool = False) -> list[Member]:
        """The view of this ballot has taken too long to prepare: the leader decides who is left out, and tells
        them. Returns the joiners among them, whose connections the driver ends. `again`: members that were told before
        and haven't stopped are suspected, if a majority remains."""
        if not self._still_prepares(ballot):
            return []
        assert self.view is not None and self.next_view is not None and self._table is not None
        joiners = {joiner.node_id for joiner in self._joiners()}
        unprepared = joiners - self._joiners_prepared | {
            self.view.members[rank].node_id for rank in self.live_ranks() if self._table.get(rank, "prepared") < ballot}
        gone = left_out(self.next_view, joiners, unprepared, self._lacks)
        parted = []
        for node_id, why in sorted(gone.items(), key=lambda item: item[0] == self.me.node_id):
            member = self.next_view.member(node_id)
            assert member is not None
            text = f"{member} is left out of view {self.next_view.view_id}, as no connection can be made: {why}"
            if node_id in joiners:
                self._act(m.Send(node_id, m.Rejection(0, JoinFailed.__name__, text), member.incarnation))
                self.peer_gone(member, why=text, ended=False)
                parted.append(member)
            elif member == self.me:
                self._left_out(text)
            elif again and self.may_suspect({node_id}):
                self.suspect(node_id, text)
            else:
                self._act(m.Send(node_id, m.LeftOut(self.next_view.view_id, ballot, text), member.incarnation))
        return parted

    def _still_prepares(self, ballot: int) -> bool:
        """True if this node leads, and its proposal of this ballot can still be replaced."""
        waiting = self.phase in (Phase.PREPARING, Phase.PREPARED) and self.ballot == ballot
        # A member that hasn't acknowledged hangs: the detector finds it.
        return waiting and self.is_leader and self._least("acked") >= ballot and not self._decision_stands()

    def _left_out(self, why: str) -> None:
        self._fail(CastOut(f"{why}. It has stopped, so that the others can go on. Look at the network and the firewall "
                           f"between the two; {REJOIN}"))

    def _told_to_stop(self, node_id: int, message: m.LeftOut) -> None:
        """Obeyed from the present leader only, and only until this node wedges: then the decision stands."""
        if self._table is None or self.view is None or message.ballot != self.ballot:
            return
        if self.phase in (Phase.PREPARING, Phase.PREPARED) and self.view.members[self.leader_rank].node_id == node_id:
            self._left_out(message.why)

    # --- inside

    def _tell_leader(self) -> None:
        """Makes sure that the present leader knows our wishes, in their order."""
        if self._table is None or self.view is None:
            return
        leader = self.view.members[self.leader_rank]
        told, self._told = self._told, {request_id: leader.life for request_id in self._own}
        for request_id, wish in self._own.items():
            if told.get(request_id) == leader.life:
                continue
            request = m.TopicRequest(request_id, self.view.view_id, wish)
            if self.is_leader:
                self._wishes.add(self.me.node_id, request)
            else:
                self._act(m.Send(leader.node_id, request, leader.incarnation))

    def _refuse(self, node_id: int, rejection: m.Rejection) -> None:
        self._wishes.topics = {
            key: one for key, one in self._wishes.topics.items()
            if not (key[0] == node_id and one.request_id == rejection.request_id)
        }
        if node_id == self.me.node_id:
            self._own.pop(rejection.request_id, None)
            self._act(m.Rejected(rejection.request_id, rejection.kind, rejection.text))
        else:
            self._act(m.Send(node_id, rejection))
            member = self.view.member(node_id) if self.view is not None else None
            if member is not None:
                self._refused[member.life, rejection.request_id] = rejection
                while len(self._refused) > REFUSED_MAX:
                    self._refused.popitem(last=False)
