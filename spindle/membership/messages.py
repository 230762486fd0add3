"""What machines say to each other, and what a machine asks of its driver.

Rules: a message is sent to one node over a connection that keeps order; it may be lost only together with the
connection. Actions are carried out in the order they were given, before the machine steps again.
"""

from __future__ import annotations

import dataclasses

from spindle.group.settings import UNSAID, Settings
from spindle.group.topics import TopicSpec
from spindle.group.view import Member, View

# --- messages


@dataclasses.dataclass(frozen=True)
class CurrentView:
    """To a node that is not a member: what is installed here."""

    view: View


@dataclasses.dataclass(frozen=True)
class JoinRequest:
    """From a node that wants to be a member of the group whose view it was told. The group takes over its settings
    if their version is greater than the group's."""

    member: Member
    group_id: int
    view_id: int
    settings: Settings = UNSAID


@dataclasses.dataclass(frozen=True)
class Role:
    """A wish to have exactly this part in a topic. Invariant: a sender is a member."""

    topic: str
    member: bool
    sender: bool


@dataclasses.dataclass(frozen=True)
class Deletion:
    """A wish to delete a topic: the one that was declared at `born`, not a later one of its name.

    renews: it is logged, and the group keeps in mind that what its journals have doesn't count any more: the next
    declaration says what it is; undeclared: with that, there are only journals of it, and `born` says nothing
    """

    topic: str
    born: tuple[int, int]
    renews: bool = False
    undeclared: bool = False


Wish = TopicSpec | Role | Deletion


@dataclasses.dataclass(frozen=True)
class TopicRequest:
    """A member's wish about one topic: a TopicSpec declares it, a Role joins or leaves it, a Deletion ends it."""

    request_id: int
    view_id: int
    wish: Wish

    @property
    def topic(self) -> str:
        return self.wish.name if isinstance(self.wish, TopicSpec) else self.wish.topic


@dataclasses.dataclass(frozen=True)
class Rejection:
    """A request that the group can't fulfil; request_id 0 is the join. `kind` is a class name of spindle.errors."""

    request_id: int
    kind: str
    text: str


@dataclasses.dataclass(frozen=True)
class Admission:
    """From the leader to a joiner: the committed next view that it is in. `base` is the id of the view before it; the
    last `joiners` members of it are new."""

    view: View
    ballot: int
    base: int
    joiners: int


@dataclasses.dataclass(frozen=True)
class Prepared:
    """From a joiner to the leader: its memory of the next epoch is made and exchanged."""

    view_id: int
    ballot: int


@dataclasses.dataclass(frozen=True)
class Lacking:
    """To the leader: what this node still waits for, long after it began to prepare the view of this ballot: node ids,
    and what is known of why."""

    view_id: int
    ballot: int
    lacks: tuple[tuple[int, str], ...]


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """From the leader to a member that can't be connected with others for the next view: it has to stop, so that the
    group can go on."""

    view_id: int
    ballot: int
    why: str


@dataclasses.dataclass(frozen=True)
class Installed:
    """From a member to a joiner: the next view is installed, begin."""

    group_id: int
    view_id: int
    ballot: int


Message = CurrentView | JoinRequest | TopicRequest | Rejection | Admission | Prepared | Lacking | LeftOut | Installed

# --- actions


@dataclasses.dataclass(frozen=True)
class Send:
    """Send the message to this life of a node, if it is still connected (0: to whichever life is). A JoinRequest that
    can't be sent is answered by Machine.unreachable()."""

    node_id: int
    message: Message
    incarnation: int = 0


@dataclasses.dataclass(frozen=True)
class Gather:
    """Wait a moment for what others are about to wish, then call Machine.gathered()."""


@dataclasses.dataclass(frozen=True)
class Prepare:
    """Make the memory of the next epoch, exchange it with all other members of `view`, then call Machine.prepared().
    Forget what was prepared for an earlier ballot. A node that is not in `view` has nothing to exchange."""

    view: View
    ballot: int


@dataclasses.dataclass(frozen=True)
class Wedge:
    """Stop sending and accepting, freeze the received counts, then set the column "wedged" to `ballot` and push."""

    ballot: int


@dataclasses.dataclass(frozen=True)
class Cut:
    """This member of the installed view takes no part any more: nothing goes to its memory, and its connection, if
    there still is one, is closed after telling it that it was cast out."""

    node_id: int
    rank: int
    why: str


@dataclasses.dataclass(frozen=True)
class DeliverToTrim:
    """Deliver every subgroup of the ending epoch up to its trim: messages kept of each sender, by topic id."""

    trims: dict[int, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Install:
    """Switch to the prepared epoch of this view, then call Machine.installed() with its table."""

    view: View


@dataclasses.dataclass(frozen=True)
class Revise:
    """The installed view has changed to this revision of it; the epoch goes on."""

    view: View


@dataclasses.dataclass(frozen=True)
class Left:
    """The node has left in order; it may close everything."""


@dataclasses.dataclass(frozen=True)
class Rejected:
    """A request of this node failed. request_id 0 is the join."""

    request_id: int
    kind: str
    text: str


@dataclasses.dataclass(frozen=True)
class Failed:
    """The node must stop: `kind` is a class name of spindle.errors."""

    kind: str
    text: str


Action = Send | Gather | Prepare | Wedge | Cut | DeliverToTrim | Install | Revise | Left | Rejected | Failed
