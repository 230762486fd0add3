"""A node's way into a group and out of it, as far as its membership machine goes.

A node outside asks a member to be let in. Once it is admitted, the members count on it for their next view, but it
can't see their rows. It waits for the word to install that view, and goes back outside when nobody can send that word.
"""

from __future__ import annotations

from spindle.errors import MembershipError
from spindle.group.view import Member, View
from spindle.membership import messages as m
from spindle.membership.rules import Phase, Rules


class Outside(Rules):
    """The part of a machine that has no table."""

    def seek(self, view: View) -> None:
        """A member told a node outside which view is installed: ask its leader to be let in. If this node was admitted
        to a view that was given up, it asks again."""
        if self.phase not in (Phase.OUTSIDE, Phase.ADMITTED) or not view.members:
            return
        if self.view is not None and self.view.group_id != view.group_id:
            asked = self._asked
            if asked is not None and asked not in self._dead and view.member(asked[0]) is None:
                self._other = view
                return
            self._base, self._asked = -1, None  # the group that this node was told of has come to its end
        elif self.view is not None and self.view.view_id > view.view_id:
            return
        self.view = view
        if self.phase is Phase.ADMITTED and self._admission_is_void():
            self._back_outside()
        elif self.phase is Phase.OUTSIDE:
            self._ask()

    def _ask(self) -> None:
        """Asks the lowest member of the told view that is not known to be gone."""
        assert self.view is not None
        leader = next((one for one in self.view.members if not self._is_gone(one)), None)
        if leader is not None and self._asked != leader.life:
            self._asked = leader.life
            request = m.JoinRequest(self.me, self.view.group_id, self.view.view_id, self.settings)
            self._act(m.Send(leader.node_id, request, leader.incarnation))
        elif leader is None and self._other is not None:
            other, self._other = self._other, None
            self.seek(other)

    def _admission_is_void(self) -> bool:
        """True if the view that this node was admitted to can't come any more: another has followed the one in which
        that was decided, or everybody who could send the word to install it is gone."""
        assert self.view is not None and self.next_view is not None
        passed = self.view.view_id > self._base and (
            (self.view.view_id, self.view.members) != (self.next_view.view_id, self.next_view.members))
        return passed or all(map(self._is_gone, self._admitting + self.view.members))

    def _is_gone(self, member: Member) -> bool:
        """True if the member is dead, or if its node was last connected in another life."""
        return self._is_dead(member) or self._met.get(member.node_id, member.incarnation) != member.incarnation

    def connected(self, node_id: int, incarnation: int) -> None:
        """There is a new connection to this life of a node. Only between members is the end of a connection final."""
        life = node_id, incarnation
        self._met[node_id] = incarnation
        fellow = self.view.member(node_id) if self._table is not None and self.view is not None else None
        fellows = fellow is not None and fellow.life == life
        if not fellows and life in self._dead and not self._dead[life].ended:
            del self._dead[life]
            if self.phase is Phase.OUTSIDE and self.view is not None:
                self._ask()
        if self.phase is Phase.ADMITTED and self._admission_is_void():
            self._back_outside()

    def _back_outside(self) -> None:
        self._void = (self.next_view, self.ballot)
        self.phase, self.next_view, self.ballot, self._asked = Phase.OUTSIDE, None, 0, None
        if self.leaving:
            self.leave()
        else:
            self._ask()

    def leave(self) -> None:
        """Wishes to leave in order; ends with the action Left."""
        self.leaving = True
        if self._table is not None:
            self._table.set("leaving", 1)
            self._table.push()
        elif self.phase is Phase.OUTSIDE:
            self.phase = Phase.GONE
            self._act(m.Left())
        # Admitted: the others count on this node by now, so it becomes a member first and leaves then.

    def _admitted(self, node_id: int, message: m.Admission) -> None:
        if self.phase not in (Phase.OUTSIDE, Phase.ADMITTED) or message.ballot <= self.ballot:
            return
        if self.view is not None and self.view.view_id > message.base:
            return  # from a member that the group has gone on without
        if message.view.rank_of(self.me.node_id) is None:
            raise MembershipError(f"node {node_id} admitted this node to a view without it")
        told = self.view.member(node_id) if self.view is not None else None
        self._asked = (node_id, told.incarnation if told is not None else 0)
        self._base = message.base
        self._admitting = message.view.members[:len(message.view.members) - message.joiners]
        self._decide(message.view, message.ballot)
        self.phase = Phase.ADMITTED
        self._act(m.Prepare(message.view, message.ballot))

    def _begin(self, message: m.Installed) -> None:
        """The word to install, from a member or another joiner. It is passed on to the other joiners, as the member
        that gave it may be dead by now. It counts even if all members seemed to be gone before it came."""
        view, ballot = (self.next_view, self.ballot) if self.phase is Phase.ADMITTED else self._void
        if self.phase not in (Phase.OUTSIDE, Phase.ADMITTED) or view is None or message.ballot != ballot:
            return
        if (message.group_id, message.view_id) != (view.group_id, view.view_id):
            return
        self._decide(view, ballot)
        for member in view.members[len(self._admitting):]:
            if member != self.me:
                self._act(m.Send(member.node_id, message, member.incarnation))
        self.phase = Phase.INSTALLING
        self._act(m.Install(view))
