"""The rules of membership: how one view follows another, through failures of any minority.

Why columns and not messages: what a member has said stands in its row, where everybody can look it up at any time; a
node that takes over the lead finds all it needs in the rows. Messages only carry wishes to the leader, and talk to
nodes that have no row yet.

The steps from view v to v+1; each is one rule below, tried in this order until none applies:

    absorb       all:    what live rows suspect is suspected here, too
    propose      leader: one complete next view into its proposal area, then column proposed = ballot
    acknowledge  all:    copy it into the own area, then proposed = acked = ballot
    commit       leader: acked by all -> committed = ballot, of a revision or with joiners, who get an Admission
    revise       all:    committed, and a revision of the installed view -> it is the view from now on, and that is all
    prepare      all:    make and exchange the next epoch's memory while traffic flows, then prepared; with joiners in
                         it, only once it is committed
    wedge        leader: prepared by all, joiners included -> wedged = ballot; the others wedge at the leader's word
    trim         leader: wedged by all -> per subgroup and sender the least frozen count into the trim area, trimmed
    echo         all:    copy it into the own trim area, trim_echoed
    install      all:    echoed by all, all the same -> deliver up to it, install v+1 (or leave); joiners get Installed

Rules:
- "All" are the live members, "leader" is the lowest of them, and it acts only behind the barrier; without a majority
  nobody does anything (`spindle.membership.participants`).
- A ballot is attempt * NODES_MAX + rank of the proposer + 1, so columns that hold ballots only grow, and the next
  leader can always outbid. Nobody acts on a proposal before all have acknowledged it, except by preparing: the memory
  for a proposal that is given up is given back. A member that is prepared has acknowledged.
- Members take orders from their present leader's row only, and take over its suspicions before they obey: so what a
  suspect has said is never obeyed late, and a leader behind the barrier sees all that was obeyed before.
- Until somebody live has wedged, a proposal may be replaced by one with a higher ballot, because a joiner vanished, or
  a member of it or its proposer is suspected. A new leader keeps the joiners of the newest proposal that it finds.
  Nothing is lost by that: a view is installed only when all live members have wedged and echoed.
- Once somebody live has wedged, the decision stands as it is: the next leader carries it to its end, even with dead
  members in it, and the view after it is without them. Two changes are two views or one batch, never a blend.
- A revision moves nothing in shared memory, so the epoch goes on. A member that takes it says so in its own column
  committed. A new leader takes the revision of an earlier one if all the living have acknowledged it, and nothing that
  was proposed in its place: its leader, or one of them, may have taken it. So the living never differ for long, and
  what was declared isn't lost with the leader. Columns hold ballots, so an answer to one revision is none to the next.
- A trim is adopted if any witness has echoed it: somebody may have installed by it. Else it is computed anew.
- Whoever is suspected by a live member is cast out, and stops.
- A view that can't be prepared holds up nobody for ever: after a while each says what it lacks, and the leader decides
  who is left out (`spindle.membership.left_out`). A member that is left out is told so and stops, so it is certain that
  it never acts again; only one that doesn't stop is suspected.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict

from spindle.errors import CastOut, MembershipError, SpindleError, error_to_wire
from spindle.group.settings import UNSAID, Settings
from spindle.group.view import NODES_MAX, Member, View
from spindle.membership import messages as m
from spindle.membership.codec import decode_newcomers, decode_proposal, decode_trim, encode_proposal, encode_trim
from spindle.membership.participants import Participants
from spindle.membership.plan import Wishes, following, plan_next
from spindle.membership.table import Table
from spindle.membership.trim import fits, least_frozen

RESTART_ALL = "stop all nodes of the domain and start them again"
REJOIN = "start it again, or set [membership] rejoin"


class Phase(enum.Enum):
    """Where a node stands between two views."""

    OUTSIDE = "outside"  # not a member, and not yet admitted
    ADMITTED = "admitted"  # a joiner that is in the committed next view
    STABLE = "stable"  # a view is installed, nothing is proposed
    ACKNOWLEDGED = "acknowledged"  # a next view is copied and acknowledged, and has to be committed
    PREPARING = "preparing"  # the next epoch's memory is being made
    PREPARED = "prepared"  # the memory is exchanged; waiting for the others
    WEDGED = "wedged"  # sending has stopped; waiting for the trim
    ECHOED = "echoed"  # the trim is copied; waiting for the other echoes
    INSTALLING = "installing"  # decided; the driver is switching over
    GONE = "gone"  # left, or failed: nothing happens any more


@dataclasses.dataclass(frozen=True)
class Gone:
    """What is known of a life of a node that is gone or suspected."""

    left: bool  # in order
    ended: bool  # it never acts again, and its row is all that it left behind
    why: str


class Rules:
    """What a member knows, and the rules that it applies. `Machine` adds the inputs."""

    def __init__(self, me: Member, settings: Settings | None = None) -> None:
        self.me = me
        self.settings = settings or UNSAID  # this node's; the group's are in its view
        self.phase = Phase.OUTSIDE
        self.view: View | None = None  # installed; of a joiner: as told by a member
        self.next_view: View | None = None  # acknowledged or admitted to
        self.ballot = 0  # of next_view
        self.leaving = False
        self._table: Table | None = None
        self._participants: Participants | None = None  # of the table's epoch
        self._met: dict[int, int] = {}  # by node id: the life that was connected last
        self._dead: dict[tuple[int, int], Gone] = {}  # lives whose connection ended or who are suspected
        self._wishes = Wishes()  # pending at this node, in case it leads
        self._own: dict[int, m.Wish] = {}  # this node's wishes that no view fulfils yet
        self._refused: OrderedDict[tuple[tuple[int, int], int], m.Rejection] = OrderedDict()  # by life and request id
        self._deferred: list[tuple[int, m.Message]] = []  # sent under a view that is not installed here yet
        self._joiners_prepared: set[int] = set()
        self._lacks: dict[int, dict[int, str]] = {}  # at the leader, by node id: what it can't get for next_view
        self._together = False  # at the leader: several nodes have wished for roles at a time
        self._gathering: bool | None = None  # ... and the leader waits for more: None not yet, False no longer
        self._look_again = False  # suspicions were absorbed in the middle of a rule
        self._base = -1  # of a joiner: id of the view in which its admission was decided
        self._other: View | None = None  # outside: a view of another group, asked when the present one has ended
        self._void: tuple[View | None, int] = (None, 0)  # of a joiner: view and ballot of an admission that it gave up
        self._admitting: tuple[Member, ...] = ()  # of a joiner: the old members in the view it is admitted to
        self._asked: tuple[int, int] | None = None  # of a joiner: node id and incarnation of the leader it has asked
        self._told: dict[int, tuple[int, int]] = {}  # per own wish the leader that knows it
        self._request_id = 0
        self._actions: list[m.Action] = []

    # --- who takes part

    def live_ranks(self) -> list[int]:
        """Ranks whose agreement counts in this epoch."""
        return self._participants.live if self._participants is not None else []

    @property
    def leader_rank(self) -> int:
        """The lowest rank that takes part."""
        return self.live_ranks()[0]

    @property
    def is_leader(self) -> bool:
        return self._table is not None and self._table.my_rank == self.leader_rank

    def _leader_says(self, column: str) -> int:
        """A column of the leader's row, to be obeyed; 0 if a live row has a suspicion that is news here, as then
        another member may lead, or other members count."""
        assert self._table is not None
        value = self._table.get(self.leader_rank, column)
        if self._absorb():
            self._look_again = True
            return 0
        return value

    def _outbid(self, column: str) -> int:
        """A ballot of this member above all that it sees in a column."""
        assert self._table is not None
        highest = max(self._table.get(rank, column) for rank in range(self._table.n_rows))
        ballot = self._table.my_rank + 1
        while ballot <= highest:
            ballot += NODES_MAX
        return ballot

    def _least(self, column: str) -> int:
        assert self._table is not None
        return min(self._table.get(rank, column) for rank in self.live_ranks())

    def _joiners(self) -> list[Member]:
        assert self.view is not None and self.next_view is not None
        return [member for member in self.next_view.members if self.view.rank_of(member.node_id) is None]

    def _decision_stands(self) -> bool:
        """True once somebody live has wedged: the next view can't be replaced any more."""
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
        assert self._participants is not None
        if self._absorb():
            return True
        if not self._participants.has_majority():
            return False
        if self._revise():
            return True
        if self.is_leader and self._participants.barrier_passed() and (
                self._propose() or self._commit() or self._trim()):
            return True
        if self._acknowledge() or self._prepare() or self._wedge() or self._echo() or self._install():
            return True
        again, self._look_again = self._look_again, False
        return again

    def _absorb(self) -> bool:
        """Takes over what others suspect; True if that is news. Raises CastOut if this node is suspected."""
        assert self._participants is not None and self.view is not None
        if self._participants.heard_all():
            return False
        accuser = self._participants.accuser()
        if accuser is not None:
            raise CastOut(f"{self.view.members[accuser]} suspects this node of having failed, and the group goes on "
                          "without it, so it has stopped. It hung for longer than [membership] suspect_timeout_s, or "
                          f"its connection broke; {REJOIN}")
        news = self._participants.absorb()
        for rank in news:
            self._suspected(rank, "another member suspects it")
        return bool(news)

    def _propose(self) -> bool:
        assert self._table is not None and self.view is not None
        table = self._table
        if self._decision_stands() or (self.phase is not Phase.STABLE and not self._in_vain()):
            return False
        if not self._adopt_joiners():
            return False
        live = self.live_ranks()
        leaving = frozenset(
            member.node_id for rank, member in enumerate(self.view.members)
            if rank not in live or table.get(rank, "leaving"))
        if not leaving and self._gathers():
            return False
        plan = plan_next(self.view, self._wishes, leaving)
        for node_id, rejection in plan.rejections:
            self._refuse(node_id, rejection)
        view = plan.view
        if self.phase is not Phase.STABLE and (view is None or view.revises(self.view)):
            # Another proposal must replace the one that is given up, and must be a view if that one was: joiners that
            # were admitted to it learn only from another view, not from a revision, that it doesn't come.
            assert self.next_view is not None
            revises = self.next_view.revises(self.view)
            view = view or dataclasses.replace(self.view, revision=self.view.revision + 1)
            view = view if revises else following(view)
        if view is None:
            self._wishes.drop_fulfilled(self.view)  # told when the view had it already: no view to come drops it
            return False
        ballot = self._outbid("proposed")
        table.write_area("proposal", encode_proposal(view, self.view, ballot))
        table.set("proposed", ballot)
        table.push()
        return self._acknowledge()

    def _gathers(self) -> bool:
        """True while the leader waits for more wishes: if several nodes wished for roles together the last time, others
        may be about to follow the one that has begun. A node alone waits for nobody."""
        assert self.view is not None
        asking = self._wishes.asking_for_roles
        if asking and self._together and self._gathering is not False and not self._wishes.joins and (
                self.phase is Phase.STABLE and len(asking) < len(self.live_ranks())):
            if self._gathering is None:
                self._gathering = True
                self._act(m.Gather())
            return True
        if asking:
            self._together, self._gathering = len(asking) > 1, None
        return False

    def _in_vain(self) -> bool:
        """True if the acknowledged proposal can't be carried out: its proposer, a joiner or a member of it is gone."""
        assert self._table is not None and self.view is not None and self.next_view is not None
        if _proposer(self.ballot) != self._table.my_rank:
            return True
        return any(self._is_dead(member) for member in self.next_view.members)

    def _adopt_joiners(self) -> bool:
        """Makes the joiners and settings of the newest proposal that a live member holds our own; False if it can't be
        read yet."""
        assert self._table is not None and self.view is not None
        table = self._table
        newest = max(self.live_ranks(), key=lambda rank: table.get(rank, "proposed"))
        ballot = table.get(newest, "proposed")
        if not ballot or _proposer(ballot) == table.my_rank:
            return True
        try:
            members, settings = decode_newcomers(table.read_area(newest, "proposal"))
        except ValueError:  # not whole yet
            return False
        for member in members:
            if member not in self.view.members and not self._is_dead(member):
                self._wishes.joins.setdefault(member.node_id, member)
        self._wishes.propose(settings)
        return True

    def _acknowledge(self) -> bool:
        assert self._table is not None and self.view is not None
        table, leader = self._table, self.leader_rank
        ballot = self._leader_says("proposed")
        if ballot <= table.get(table.my_rank, "acked") or _proposer(ballot) != leader:
            return False
        if self._revise():  # it was committed before the leader proposed the next one, which follows it
            return True
        try:
            data = table.read_area(leader, "proposal")
        except ValueError:  # not whole yet
            return False
        view = decode_proposal(data, self.view, ballot)
        if view is None:  # the area has the next proposal already; its column comes later
            return False
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
        revision = view.revises(self.view) and view.revision == self.view.revision + 1
        if revision and view.members != self.view.members:
            raise MembershipError(f"other members were proposed as a revision of view {view.view_id}; {RESTART_ALL}")
        if view.group_id != self.view.group_id or (view.view_id <= self.view.view_id and not revision):
            raise MembershipError(f"view {view.view_id} was proposed after view {self.view.view_id}; {RESTART_ALL}")
        if view.settings.version < self.view.settings.version:
            raise MembershipError(f"view {view.view_id} was proposed with settings of version {view.settings.version}, "
                                  f"after {self.view.settings.version}; {RESTART_ALL}")
        if self.phase in (Phase.WEDGED, Phase.ECHOED):
            raise MembershipError(f"another view {view.view_id} was proposed when it stood already; {RESTART_ALL}")
        if view.rank_of(self.me.node_id) is None and not self.leaving:
            raise CastOut(f"view {view.view_id} was proposed without this node, which did not ask to leave, so it has "
                          f"stopped; {REJOIN}")

    def _decide(self, view: View, ballot: int) -> None:
        self.next_view, self.ballot = view, ballot
        self._joiners_prepared, self._lacks = set(), {}

    def _commit(self) -> bool:
        assert self._table is not None
        table = self._table
        if self.phase is not Phase.ACKNOWLEDGED or table.get(table.my_rank, "committed") >= self.ballot:
            return False
        if _proposer(self.ballot) != table.my_rank or self._least("acked") < self.ballot:
            return False
        assert self.view is not None and self.next_view is not None
        joiners = self._joiners()
        if not joiners and not self.next_view.revises(self.view):
            return False  # not needed: before anybody wedges all are prepared, and so have acknowledged
        table.set("committed", self.ballot)
        table.push()
        for joiner in joiners:
            self._act(m.Send(joiner.node_id, m.Admission(
                self.next_view, self.ballot, self.view.view_id, len(joiners)), joiner.incarnation))
        return True

    def _revise(self) -> bool:
        """Takes a committed revision, also one of an earlier leader, if all the living have acknowledged it: that
        leader may have committed it then, and told its programs. A new leader decides so behind the barrier, as nobody
        acknowledges it any more, and before it proposes anything."""
        if self.phase is not Phase.ACKNOWLEDGED:
            return False
        assert self._table is not None and self._participants is not None
        assert self.view is not None and self.next_view is not None
        if not self.next_view.revises(self.view):
            return False
        table = self._table
        if not self.is_leader:
            decided = self._leader_says("committed") == self.ballot
        elif _proposer(self.ballot) == table.my_rank:
            decided = table.get(table.my_rank, "committed") == self.ballot
        else:
            decided = self._participants.barrier_passed() and self._all_took_or_acknowledged()
        if not decided:
            return False
        self.view, self.next_view = self.next_view, None
        self.phase = Phase.STABLE
        table.set("committed", self.ballot)
        table.push()
        self.ballot = 0
        self._act(m.Revise(self.view))
        self._revised()
        return True

    def _all_took_or_acknowledged(self) -> bool:
        """Of the acknowledged revision: whoever lives has acknowledged it, and nothing after it without taking it. Who
        has acknowledged what its leader proposed in its place may never have seen it, and its leader has not taken it:
        before that all would have had to acknowledge it."""
        assert self._table is not None
        return all(self.ballot in (self._table.get(rank, "acked"), self._table.get(rank, "committed"))
                   for rank in self.live_ranks())

    def _prepare(self) -> bool:
        if self.phase is not Phase.ACKNOWLEDGED or _proposer(self.ballot) != self.leader_rank:
            return False
        assert self.view is not None and self.next_view is not None
        if self.next_view.revises(self.view):
            return False
        if self._joiners() and self._leader_says("committed") < self.ballot:
            return False  # joiners connect to everybody: not before all have acknowledged
        self.phase = Phase.PREPARING
        self._act(m.Prepare(self.next_view, self.ballot))
        return True

    def _wedge(self) -> bool:
        if self.phase is not Phase.PREPARED or not self._may_wedge():
            return False
        self.phase = Phase.WEDGED
        self._act(m.Wedge(self.ballot))
        return True

    def _may_wedge(self) -> bool:
        assert self._table is not None and self._participants is not None
        if not self.is_leader:
            return self._leader_says("wedged") == self.ballot
        if not self._participants.barrier_passed():
            return False
        wedged = {self._table.get(rank, "wedged") for rank in self.live_ranks()} - {0}
        if wedged:
            if wedged != {self.ballot}:
                raise MembershipError(f"members have wedged for other proposals than {self.ballot}; {RESTART_ALL}")
            return True
        if _proposer(self.ballot) != self._table.my_rank or self._least("prepared") < self.ballot:
            return False
        return all(joiner.node_id in self._joiners_prepared for joiner in self._joiners())

    def _trim(self) -> bool:
        assert self._table is not None and self.view is not None
        table = self._table
        if self.phase not in (Phase.WEDGED, Phase.ECHOED):
            return False
        mine = table.get(table.my_rank, "trimmed")
        if (mine and _proposer(mine) == table.my_rank) or self._least("wedged") < self.ballot:
            return False
        try:
            data = self._echoed_trim()
        except ValueError:  # not whole yet
            return False
        if data is None:
            data = encode_trim(self.view.view_id, least_frozen(self.view, table, self.live_ranks()))
        self._write_trim(data)
        table.set("trimmed", self._outbid("trimmed"))
        table.push()
        return True

    def _echoed_trim(self) -> bytes | None:
        """The trim that somebody may have acted on. ValueError while it can't be read."""
        assert self._table is not None and self._participants is not None
        table = self._table
        witness = max(self._participants.witnesses(), key=lambda rank: table.get(rank, "trim_echoed"))
        return table.read_area(witness, "trim") if table.get(witness, "trim_echoed") else None

    def _write_trim(self, data: bytes) -> None:
        """Into the own area, unless it is there: others may be reading it."""
        assert self._table is not None
        if self._table.read_area(self._table.my_rank, "trim") != data:
            self._table.write_area("trim", data)

    def _echo(self) -> bool:
        assert self._table is not None and self.view is not None
        table, leader = self._table, self.leader_rank
        if self.phase not in (Phase.WEDGED, Phase.ECHOED) or not table.get(table.my_rank, "wedged"):
            return False
        ballot = self._leader_says("trimmed")
        if ballot <= table.get(table.my_rank, "trim_echoed") or _proposer(ballot) != leader:
            return False
        try:
            data = table.read_area(leader, "trim")
        except ValueError:  # not whole yet
            return False
        if not fits(self.view, table, self.me.node_id, *decode_trim(data)):
            raise MembershipError(f"the trim of view {self.view.view_id} does not fit what this node has received; "
                                  f"{RESTART_ALL}")
        if self.phase is Phase.ECHOED and data != table.read_area(table.my_rank, "trim"):
            raise MembershipError(f"the trim of view {self.view.view_id} was changed; {RESTART_ALL}")
        if not self.is_leader:
            self._write_trim(data)
            table.set("trimmed", ballot)
        table.set("trim_echoed", ballot)
        table.push()
        self.phase = Phase.ECHOED
        return True

    def _install(self) -> bool:
        assert self._table is not None and self.view is not None
        table = self._table
        if self.phase is not Phase.ECHOED or not self._least("trim_echoed"):
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
            word = m.Installed(self.next_view.group_id, self.next_view.view_id, self.ballot)
            self._act(m.Send(joiner.node_id, word, joiner.incarnation))
        self._table = self._participants = None
        if self.next_view.rank_of(self.me.node_id) is None:
            self.phase = Phase.GONE
            self._act(m.Left())
        else:
            self.phase = Phase.INSTALLING
            self._act(m.Install(self.next_view))
        return True

    # --- what the machine does when a rule finds it necessary

    def _revised(self) -> None:
        raise NotImplementedError

    def _suspected(self, rank: int, why: str) -> None:
        raise NotImplementedError

    def _refuse(self, node_id: int, rejection: m.Rejection) -> None:
        raise NotImplementedError

    def _is_dead(self, member: Member) -> bool:
        """True if the connection to this life of the node ended, or if it is suspected, or a former life of our own."""
        return member.life in self._dead or (member.node_id == self.me.node_id and member.life != self.me.life)

    def _act(self, action: m.Action) -> None:
        self._actions.append(action)

    def _fail(self, error: SpindleError) -> None:
        if self.phase is not Phase.GONE:
            self.phase = Phase.GONE
            self._table = self._participants = None
            self._act(m.Failed(*error_to_wire(error)))


def _proposer(ballot: int) -> int:
    """Rank of the member whose ballot it is."""
    return (ballot - 1) % NODES_MAX
