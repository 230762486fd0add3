"""The membership machine: takes one node from view to view.

Why columns and not messages: what a member has said stands in its row, where everybody can look it up at any time; a
node that takes over the lead finds all it needs in the rows. Messages only carry wishes to the leader, and talk to
nodes that have no row yet.

The steps from view v to v+1; each is one rule below, tried in this order until none applies:

    propose      leader: one complete next view into its proposal area, then column proposed = ballot
    acknowledge  all:    copy it into the own area, then proposed = acked = ballot
    commit       leader: acked by all -> committed = ballot; joiners get an Admission
    prepare      all:    committed -> make and exchange the next epoch's memory while traffic flows, then prepared
    wedge        leader: prepared by all, joiners included -> wedge; the others wedge when they see a wedged row
    trim         leader: wedged by all -> per subgroup and sender the least frozen count into the trim area, trimmed
    echo         all:    copy it into the own trim area, trim_echoed = ballot
    install      all:    echoed by all, all the same -> deliver up to it, install v+1 (or leave); joiners get Installed

Rules:
- A ballot is attempt * NODES_MAX + rank of the proposer + 1, so columns that hold ballots only grow, and who leads next
  can always outbid. Nobody acts on a proposal before its end is acknowledged by itself and committed.
- Until the leader has wedged, it may revise its proposal with a higher ballot (a joiner vanished); from then on the
  decision stands. A view is installed or not, two proposals are never blended.
- Who takes part in "all" is `live_ranks`; who leads is `leader_rank`. What is unlocked by all is a minimum over exactly
  these rows.
- The machine reads no clock, and does nothing by itself: inputs are its methods, outputs `take_actions()` and the own
  row. After every input and every ring of the table the driver calls `step()` and carries out the actions, until there
  are none.
"""

from __future__ import annotations

import enum

from spindle.errors import JoinFailed, MembershipError, NodeIdTaken, PeerLost, SpindleError, error_to_wire
from spindle.membership import messages as m
from spindle.membership.codec import decode_trim, decode_view, encode_trim, encode_view
from spindle.membership.plan import Wishes, fulfilled, plan_next
from spindle.membership.table import Table
from spindle.topics import TopicSpec
from spindle.view import NODES_MAX, Member, View

RESTART_ALL = "stop all nodes of the domain and start them again"


class Phase(enum.Enum):
    """Where a node stands between two views."""

    OUTSIDE = "outside"  # not a member, and not yet admitted
    ADMITTED = "admitted"  # a joiner that is in the committed next view
    STABLE = "stable"  # a view is installed, nothing is proposed
    ACKNOWLEDGED = "acknowledged"  # a next view is copied and acknowledged
    PREPARING = "preparing"  # it is committed; the next epoch's memory is being made
    PREPARED = "prepared"  # the memory is exchanged; waiting for the others
    WEDGED = "wedged"  # sending has stopped; waiting for the trim
    ECHOED = "echoed"  # the trim is copied; waiting for the other echoes
    INSTALLING = "installing"  # decided; the driver is switching over
    GONE = "gone"  # left, or failed: nothing happens any more


class Machine:
    """The machine of one node. Start with `form()` (alone) or `seek()` (told a view by a member)."""

    def __init__(self, me: Member) -> None:
        self.me = me
        self.phase = Phase.OUTSIDE
        self.view: View | None = None  # installed; of a joiner: as told by a member
        self.next_view: View | None = None  # acknowledged or admitted to
        self.ballot = 0  # of next_view
        self.leaving = False
        self._table: Table | None = None
        self._wishes = Wishes()  # pending at this node as leader
        self._own: dict[int, TopicSpec | m.Role] = {}  # this node's wishes that no view fulfils yet
        self._deferred: list[tuple[int, m.Message]] = []  # sent under a view that is not installed here yet
        self._joiners_prepared: set[int] = set()
        self._joiners_gone: set[int] = set()  # in next_view, but their connection ended
        self._asked: tuple[int, int] | None = None  # of a joiner: node id and incarnation of the leader it has asked
        self._told: dict[int, tuple[int, int]] = {}  # per own wish the leader that knows it
        self._request_id = 0
        self._actions: list[m.Action] = []

    # --- inputs

    def form(self, group_id: int) -> None:
        """Becomes the only member of a new group."""
        self.view = View(group_id, -1)
        self._decide(View(group_id, 0, (self.me,)), ballot=1)
        self._act(m.Prepare(View(group_id, 0, (self.me,)), 1))
        self._act(m.Install(View(group_id, 0, (self.me,))))
        self.phase = Phase.INSTALLING

    def seek(self, view: View) -> None:
        """A member told a node outside which view is installed: ask its leader to be let in."""
        if self.phase is not Phase.OUTSIDE or not view.members:
            return
        if self.view is not None and (self.view.group_id != view.group_id or self.view.view_id > view.view_id):
            return
        self.view = view
        leader = view.members[0]
        if self._asked != (leader.node_id, leader.incarnation):
            self._asked = (leader.node_id, leader.incarnation)
            self._act(m.Send(leader.node_id, m.JoinRequest(self.me, view.view_id)))

    def declare(self, spec: TopicSpec) -> int:
        """Wishes that the topic exists; returns the request id. Fulfilled when an installed view has the topic."""
        return self._wish(spec)

    def take_role(self, role: m.Role) -> int:
        """Wishes to have this part in a topic, and replaces an earlier wish about it; returns the request id."""
        for request_id, wish in list(self._own.items()):
            if isinstance(wish, m.Role) and wish.topic == role.topic:
                del self._own[request_id]
        return self._wish(role)

    def _wish(self, wish: TopicSpec | m.Role) -> int:
        self._request_id += 1
        self._own[self._request_id] = wish
        self._tell_leader()
        return self._request_id

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
        self._joiners_gone.clear()
        self._table = table
        self.phase = Phase.STABLE
        table.set("installed", self.view.view_id + 1)
        if self.leaving:
            table.set("leaving", 1)
        table.push()
        self._wishes.drop_fulfilled(self.view)
        self._own = {
            request_id: wish
            for request_id, wish in self._own.items()
            if not fulfilled(self.view, self.me.node_id, wish) or isinstance(wish, TopicSpec)
        }
        self._settle_declarations()
        self._tell_leader()
        deferred, self._deferred = self._deferred, []
        for node_id, message in deferred:
            self.receive(node_id, message)

    def _settle_declarations(self) -> None:
        """Our declarations of topics that exist now: the same, or refused because another was first."""
        assert self.view is not None
        for request_id, wish in list(self._own.items()):
            topic = self.view.topic(wish.name) if isinstance(wish, TopicSpec) else None
            if topic is not None and isinstance(wish, TopicSpec):
                del self._own[request_id]
                try:
                    topic.spec.check_same(wish)
                except SpindleError as error:
                    self._act(m.Rejected(request_id, *error_to_wire(error)))

    def peer_gone(self, member: Member, left: bool = False, why: str = "") -> None:
        """The connection to this node ended. `left`: it said before that it has left, so all it owes is in its row or
        on the way. Otherwise, if it was a member or too far on its way in, this node fails; `why` is what it said."""
        if self.phase in (Phase.GONE, Phase.INSTALLING):
            return
        self._wishes.drop_node(member.node_id)
        if self.phase in (Phase.OUTSIDE, Phase.ADMITTED):
            # Another joiner's end is the leader's business: it revises the admission, or fails and is missed then.
            if self._asked is not None and self._asked[0] == member.node_id and not left:
                self._fail(JoinFailed(f"{member} vanished while this node was joining; start this node again"))
            return
        assert self.view is not None
        rank = self.view.rank_of(member.node_id)
        if rank is None:
            self._joiners_gone.add(member.node_id)
            joining = self.next_view is not None and self.next_view.rank_of(member.node_id) is not None
            if joining and self._decision_stands():
                self._fail(lost(member, "while it joined", why))
        elif not left:
            self._fail(lost(member, f"in view {self.view.view_id}", why))

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
            if message.request_id == 0:
                self.phase = Phase.GONE
            self._own.pop(message.request_id, None)
            self._act(m.Rejected(message.request_id, message.kind, message.text))
        elif isinstance(message, m.Prepared):
            if message.ballot == self.ballot:
                self._joiners_prepared.add(node_id)
        elif self._table is None or self.view is None or message.view_id > self.view.view_id:
            self._deferred.append((node_id, message))
        elif self.is_leader:
            self._take_wish(node_id, message)
        elif isinstance(message, m.JoinRequest):
            self._act(m.Send(node_id, m.CurrentView(self.view)))  # it asks the wrong one
        # A topic request that reached a former or later leader is told again to the right one by its node.

    def _take_wish(self, node_id: int, message: m.JoinRequest | m.TopicRequest) -> None:
        assert self.view is not None
        if isinstance(message, m.TopicRequest):
            if self.view.rank_of(node_id) is not None:
                self._wishes.add(node_id, message)
            return
        same_id = self.view.member(message.member.node_id)
        if same_id is not None and same_id.incarnation != message.member.incarnation:
            text = f"node id {same_id.node_id} is taken by pid {same_id.pid}; choose another, or 0 for the lowest free"
            self._act(m.Send(node_id, m.Rejection(0, NodeIdTaken.__name__, text)))
        elif same_id is None:
            self._joiners_gone.discard(node_id)
            self._wishes.joins[node_id] = message.member

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
        least = 1 if column == "wedged" else self.ballot
        assert self.view is not None and self.next_view is not None
        late = [str(self.view.members[rank]) for rank in self.live_ranks() if self._table.get(rank, column) < least]
        if column == "prepared":
            late += [str(joiner) for joiner in self._joiners() if joiner.node_id not in self._joiners_prepared]
        return f"view {self.next_view.view_id}" + (f": {column} by {', '.join(late)}" if late else "")

    def late_joiners(self, ballot: int) -> list[int]:
        """Node ids of joiners that the leader's proposal of this ballot still waits for."""
        waiting = self.phase in (Phase.PREPARING, Phase.PREPARED)
        if not waiting or self.ballot != ballot or not self.is_leader or self._decision_stands():
            return []
        return [joiner.node_id for joiner in self._joiners() if joiner.node_id not in self._joiners_prepared]

    # --- who takes part

    def live_ranks(self) -> list[int]:
        """Ranks whose agreement counts in this epoch. A member that vanishes stops the whole group, so: all of them."""
        assert self._table is not None
        return list(range(self._table.n_rows))

    @property
    def leader_rank(self) -> int:
        """The lowest rank that takes part."""
        return self.live_ranks()[0]

    @property
    def is_leader(self) -> bool:
        return self._table is not None and self._table.my_rank == self.leader_rank

    def _least(self, column: str) -> int:
        assert self._table is not None
        return min(self._table.get(rank, column) for rank in self.live_ranks())

    def _joiners(self) -> list[Member]:
        assert self.view is not None and self.next_view is not None
        return [member for member in self.next_view.members if self.view.rank_of(member.node_id) is None]

    def _decision_stands(self) -> bool:
        """True once somebody may have wedged: the next view can't be revised any more."""
        assert self._table is not None
        return any(self._table.get(rank, "wedged") for rank in self.live_ranks())

    # --- the rules

    def step(self) -> None:
        """Applies every rule that applies, until the driver has to act or others have to answer."""
        try:
            while self._table is not None and not self._actions and self._apply_one():
                pass
        except SpindleError as error:
            self._fail(error)

    def _apply_one(self) -> bool:
        if self.is_leader and (self._propose() or self._commit() or self._trim()):
            return True
        return self._acknowledge() or self._prepare() or self._wedge() or self._echo() or self._install()

    def _propose(self) -> bool:
        assert self._table is not None and self.view is not None
        table = self._table
        if self._joiners_gone and self.next_view is not None and not self._decision_stands():
            in_vain = any(joiner.node_id in self._joiners_gone for joiner in self._joiners())
        else:
            in_vain = False
        if not in_vain and self.phase is not Phase.STABLE:
            return False
        leaving = frozenset(
            member.node_id for rank, member in enumerate(self.view.members) if table.get(rank, "leaving"))
        plan = plan_next(self.view, self._wishes, leaving)
        for node_id, rejection in plan.rejections:
            self._refuse(node_id, rejection)
        view = plan.view
        if view is None and in_vain:  # nothing else is wished: an epoch like this one takes the revised one's place
            view = View(self.view.group_id, self.view.view_id + 1, self.view.members, self.view.topics)
        if view is None:
            return False
        highest = max(table.get(rank, "proposed") for rank in self.live_ranks())
        ballot = table.my_rank + 1
        while ballot <= highest:
            ballot += NODES_MAX
        table.write_area("proposal", encode_view(view))
        table.set("proposed", ballot)
        table.push()
        return self._acknowledge()

    def _acknowledge(self) -> bool:
        assert self._table is not None and self.view is not None
        table, leader = self._table, self.leader_rank
        ballot = table.get(leader, "proposed")
        if ballot <= table.get(table.my_rank, "acked") or (ballot - 1) % NODES_MAX != leader:
            return False
        try:
            data = table.read_area(leader, "proposal")
        except ValueError:  # not whole yet
            return False
        view = decode_view(data)
        self._check_next(view)
        if not self.is_leader:
            table.write_area("proposal", data)
            table.set("proposed", ballot)
        table.set("acked", ballot)
        table.push()
        self._decide(view, ballot)
        self.phase = Phase.ACKNOWLEDGED
        return True

    def _check_next(self, view: View) -> None:
        assert self.view is not None
        if view.group_id != self.view.group_id or view.view_id != self.view.view_id + 1:
            raise MembershipError(f"view {view.view_id} was proposed after view {self.view.view_id}; {RESTART_ALL}")
        if view.rank_of(self.me.node_id) is None and not self.leaving:
            raise MembershipError(f"view {view.view_id} was proposed without this node, which did not ask to leave")

    def _decide(self, view: View, ballot: int) -> None:
        self.next_view, self.ballot = view, ballot
        self._joiners_prepared = set()

    def _commit(self) -> bool:
        assert self._table is not None
        table = self._table
        if self.phase is not Phase.ACKNOWLEDGED or table.get(table.my_rank, "committed") >= self.ballot:
            return False
        if self._least("acked") < self.ballot:
            return False
        assert self.next_view is not None
        table.set("committed", self.ballot)
        table.push()
        for joiner in self._joiners():
            self._act(m.Send(joiner.node_id, m.Admission(self.next_view, self.ballot)))
        return True

    def _prepare(self) -> bool:
        assert self._table is not None
        if self.phase is not Phase.ACKNOWLEDGED or self._table.get(self.leader_rank, "committed") < self.ballot:
            return False
        assert self.next_view is not None
        self.phase = Phase.PREPARING
        self._act(m.Prepare(self.next_view, self.ballot))
        return True

    def _wedge(self) -> bool:
        assert self._table is not None
        if self.phase is not Phase.PREPARED:
            return False
        if not self._decision_stands():
            ready = self._least("prepared") >= self.ballot
            joined = all(joiner.node_id in self._joiners_prepared for joiner in self._joiners())
            if not (self.is_leader and ready and joined):
                return False
        self.phase = Phase.WEDGED
        self._act(m.Wedge())
        return True

    def _trim(self) -> bool:
        assert self._table is not None and self.view is not None
        table = self._table
        if self.phase is not Phase.WEDGED or table.get(table.my_rank, "trimmed") >= self.ballot:
            return False
        if self._least("wedged") < 1:
            return False
        live = set(self.live_ranks())
        trims: dict[int, tuple[int, ...]] = {}
        for topic in self.view.topics:
            if topic.senders:
                ranks = [rank for rank in map(self.view.rank_of, topic.members) if rank is not None and rank in live]
                frozen = [table.frozen_counts(rank, topic.topic_id) for rank in ranks]
                trims[topic.topic_id] = tuple(min(counts) for counts in zip(*frozen, strict=True))
        table.write_area("trim", encode_trim(self.view.view_id, trims))
        table.set("trimmed", self.ballot)
        table.push()
        return True

    def _echo(self) -> bool:
        assert self._table is not None and self.view is not None
        table, leader = self._table, self.leader_rank
        if self.phase is not Phase.WEDGED or not table.get(table.my_rank, "wedged"):
            return False
        if table.get(leader, "trimmed") < self.ballot:
            return False
        try:
            data = table.read_area(leader, "trim")
        except ValueError:  # not whole yet
            return False
        self._check_trim(*decode_trim(data))
        if not self.is_leader:
            table.write_area("trim", data)
            table.set("trimmed", self.ballot)
        table.set("trim_echoed", self.ballot)
        table.push()
        self.phase = Phase.ECHOED
        return True

    def _check_trim(self, view_id: int, trims: dict[int, tuple[int, ...]]) -> None:
        """A trim keeps nothing that this member has not received."""
        assert self._table is not None and self.view is not None
        good = view_id == self.view.view_id
        for topic in self.view.topics:
            if topic.senders and self.me.node_id in topic.members:
                frozen = self._table.frozen_counts(self._table.my_rank, topic.topic_id)
                trim = trims.get(topic.topic_id, ())
                good = good and len(trim) == len(frozen) and all(a <= b for a, b in zip(trim, frozen, strict=True))
        if not good:
            raise MembershipError(f"the trim of view {self.view.view_id} does not fit what this node has received; "
                                  f"{RESTART_ALL}")

    def _install(self) -> bool:
        assert self._table is not None and self.view is not None
        table = self._table
        if self.phase is not Phase.ECHOED or self._least("trim_echoed") < self.ballot:
            return False
        mine = table.read_area(table.my_rank, "trim")
        try:
            if any(table.read_area(rank, "trim") != mine for rank in self.live_ranks()):
                raise MembershipError(f"members echoed different trims of view {self.view.view_id}; {RESTART_ALL}")
        except ValueError:  # not whole yet
            return False
        assert self.next_view is not None
        _, trims = decode_trim(mine)
        self._act(m.DeliverToTrim(trims))
        for joiner in self._joiners():
            self._act(m.Send(joiner.node_id, m.Installed(self.next_view.view_id, self.ballot)))
        self._table = None
        if self.next_view.rank_of(self.me.node_id) is None:
            self.phase = Phase.GONE
            self._act(m.Left())
        else:
            self.phase = Phase.INSTALLING
            self._act(m.Install(self.next_view))
        return True

    # --- a joiner's way in

    def _admitted(self, node_id: int, message: m.Admission) -> None:
        if self.phase not in (Phase.OUTSIDE, Phase.ADMITTED) or message.ballot <= self.ballot:
            return
        if message.view.rank_of(self.me.node_id) is None:
            raise MembershipError(f"node {node_id} admitted this node to a view without it")
        told = self.view.member(node_id) if self.view is not None else None
        self._asked = (node_id, told.incarnation if told is not None else 0)
        self._decide(message.view, message.ballot)
        self.phase = Phase.ADMITTED
        self._act(m.Prepare(message.view, message.ballot))

    def _begin(self, message: m.Installed) -> None:
        if self.phase is Phase.ADMITTED and message.ballot == self.ballot:
            assert self.next_view is not None
            self.phase = Phase.INSTALLING
            self._act(m.Install(self.next_view))

    # --- inside

    def _tell_leader(self) -> None:
        """Makes sure that the present leader knows our wishes, in their order."""
        if self._table is None or self.view is None:
            return
        leader = self.view.members[self.leader_rank]
        life = (leader.node_id, leader.incarnation)
        told, self._told = self._told, {request_id: life for request_id in self._own}
        for request_id, wish in self._own.items():
            if told.get(request_id) == life:
                continue
            request = m.TopicRequest(request_id, self.view.view_id, wish)
            if self.is_leader:
                self._wishes.add(self.me.node_id, request)
            else:
                self._act(m.Send(leader.node_id, request))

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

    def _act(self, action: m.Action) -> None:
        self._actions.append(action)

    def _fail(self, error: SpindleError) -> None:
        if self.phase is not Phase.GONE:
            self.phase = Phase.GONE
            self._table = None
            self._act(m.Failed(*error_to_wire(error)))


def lost(member: Member, when: str, why: str = "") -> PeerLost:
    """The error of a node whose peer vanished, or stopped because of `why`."""
    what = f"{member} stopped {when} ({why})" if why else f"{member} vanished {when} without leaving"
    return PeerLost(f"{what}; this node has stopped so that nothing is misordered. Start it again; a node that others "
                    "should outlive must be stopped with SIGTERM, not killed")
