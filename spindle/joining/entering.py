"""A node's way into its group: whom it finds on this host and on others, whether it joins or forms, and when it serves.

Why apart from the node: all of it is over when the node is a member, and none of it is asked again.

Rules:
- `enter()` runs under the lock for newcomers of this host (`spindle.joining.bootstrap`). Where there are contacts,
  their rules (`spindle.joining.contacts`) replace the lock, so the node releases it before it asks them: a contact that
  the group needs may be another newcomer of this host. Newcomers of one host then connect to each other, but neither
  can let the other in.
- Whoever is on this host is asked first. Before a newcomer asks to join, it introduces itself to all members of the
  view that it was told, so that nobody has to look for it later.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from spindle.errors import AccessDenied, ConnectionEnded, JoinFailed, NodeStopped, ProtocolMismatch, SpindleError
from spindle.group.view import fabric_between
from spindle.joining.bootstrap import LiveSocket, newcomer_lock, scan, socket_path
from spindle.membership.machine import Phase
from spindle.proto import opening_pb2
from spindle.transport.wire import Connection
from spindle.waiting import within

if TYPE_CHECKING:
    from spindle.config.settings import NodeConfig
    from spindle.group.view import Member, View
    from spindle.joining.contacts import Contacts
    from spindle.membership import messages as m
    from spindle.membership.machine import Machine
    from spindle.transport.network import Network
    from spindle.transport.peers import Peer, Peers

CONTACT_TIMEOUT_S = 0.1  # for further nodes of this host to answer a newcomer, once one has
OPEN_TIMEOUT_S = 5.0  # for a member on another host to answer
LOOK_AGAIN_S, LOOK_AGAIN_S_MAX = 0.1, 1.0  # between two looks at the contacts; longer while nothing changes
REACH_AGAIN_S = 0.05  # between attempts to reach a member
REFUSED_AGAIN_S = 1.0  # the same if one has refused the other: each attempt is a line in the member's log
LOOK_ELSEWHERE_S = 1.0  # between looks of a group that doesn't serve whether another one does
RESCAN_S = 0.02  # between two looks at a directory where a node is just going
LOG = logging.getLogger("spindle.node")


class Membership(Protocol):
    """This node's part in the group, as far as entering needs it (`spindle.node.changes`)."""

    me: Member
    machine: Machine

    @property
    def view(self) -> View | None:
        """The installed one, None before the node is a member."""

    def reached_at(self, endpoint: str) -> None:
        """The address of this node, which nobody knows of yet, is that one."""

    def drive(self) -> None:
        """Carries out what the machine has decided."""

    def heard(self, node_id: int, message: m.Message) -> None:
        """A message of the membership protocol from a node."""


class Entry:
    """How one node gets in.

    listen()     from now on others can reach it; called once or more
    check()      raises what the node has failed of
    fail(error)  the node must stop
    spawn(work)  a task that ends with the node
    unlock()     the next newcomer of this host may begin; called once or more
    changed      is set when the view, a connection or a failure has changed
    """

    def __init__(self, config: NodeConfig, peers: Peers, changes: Membership, network: Network | None,
                 changed: asyncio.Event, listen: Callable[[], None], check: Callable[[], None],
                 fail: Callable[[SpindleError], None],
                 spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
                 unlock: Callable[[], Awaitable[None]]) -> None:
        self._config, self._peers, self._changes, self._network = config, peers, changes, network
        self._changed, self._listen, self._check, self._fail, self._spawn = changed, listen, check, fail, spawn
        self._node_id = changes.me.node_id
        self._unlock, self._unlocked = unlock, False
        self._listening = False
        self._unmet = ""  # what the introduction to the members waits for
        self._warned: set[tuple[tuple[int, int], str]] = set()  # lives of members, and why there is no connection
        self._told = (0, -1)  # group id and view id of what this newcomer was told last
        self._reaching: dict[asyncio.Future[Peer], Member] = {}  # whom it connects to just now

    async def enter(self, found: list[LiveSocket], deadline: float) -> None:
        """Joins through anybody who is there, forms the group if nobody is. Raises JoinFailed, or what somebody refuses
        this node with."""
        while True:
            await self._contact(found, deadline)
            # If whoever let this node in has died since, and nobody else is connected, it is in the group all the same.
            outside = self._changes.view is None and self._changes.machine.phase is Phase.OUTSIDE
            alone = not self._ways_in() and (self._asks or not found)
            if outside and alone and await self._may_form(deadline):
                break
            if self._peers.connected or not outside:
                self._be_reachable()
                if await self._join(deadline):
                    assert self._changes.view is not None
                    self._give_up_who_is_not_in(self._changes.view)
                    return
            await asyncio.sleep(RESCAN_S)
            if time.monotonic() > deadline:
                raise JoinFailed(f"nodes listen in {self._config.domain_dir} but none let this one join within "
                                 f"{self._config.join_timeout_s:g} s; see their logs, or stop them")
            for one in found:
                one.close()
            found[:] = await self._scan()
        self._be_reachable()
        self._changes.machine.form(secrets.randbits(64))
        self._changes.drive()
        self._check()

    async def _scan(self) -> list[LiveSocket]:
        own_id = self._node_id if self._listening else 0
        if not self._unlocked:
            return scan(self._config, own_id)
        async with newcomer_lock(self._config.domain_dir, self._config.join_timeout_s):
            return scan(self._config, own_id)

    def _is_here(self, node_id: int) -> bool:
        """True if another node of this id has, or had, its socket on this host; if it had, the next scan removes it."""
        return node_id != self._node_id and socket_path(self._config, node_id).exists()

    async def _let_next_in(self) -> None:
        self._unlocked = True
        await self._unlock()

    @property
    def _asks(self) -> bool:
        """True if there are contacts to be asked."""
        return self._network is not None and bool(self._config.contacts)

    def _ways_in(self) -> bool:
        """True if somebody is connected who may let this node in."""
        peers = self._peers.connected.values()
        if not self._asks:
            return bool(peers)
        view = self._changes.machine.view
        return any(not one.looked or (view is not None and view.member(one.node_id) is not None) for one in peers)

    @functools.cached_property
    def _contacts(self) -> Contacts:
        """The same for all looks, so that each thing is said once."""
        from spindle.joining.contacts import Contacts

        assert self._network is not None
        return Contacts(self._config, self._network, self._peers)

    def _be_reachable(self) -> None:
        self._listening = True
        self._listen()

    async def _may_form(self, deadline: float) -> bool:
        """Nobody is there on this host. Looks on others: True if this node is to form the group, False if it is
        connected to a member now, or is to look again."""
        if self._network is None or not self._asks:
            return True
        from spindle.joining.contacts import may_form

        self._be_reachable()
        if self._config.form != "alone":
            await self._let_next_in()
        contacts = self._contacts
        pause_s = LOOK_AGAIN_S
        forms = self._config.form == "alone"  # or once this node has looked again after it had said so
        while True:
            seen = await contacts.look()
            if contacts.recognised:
                self._changes.reached_at(contacts.recognised)
                continue
            member = seen.to_join()
            if self._ways_in() or (member is not None and self._is_here(member.node_id)):
                self._peers.standing = opening_pb2.OpeningReply.LOOKING
                return False  # a member on this host, which is reached by its socket
            first = may_form(self._config, contacts.contact, seen)
            if first and forms and not seen.others_form:
                return True
            said, forms = forms, first
            self._peers.standing = contacts.standing(first)
            if first and not said:
                continue
            if member is not None:
                reached = functools.partial(
                    self._network.control, self._config.contacts[member.place], OPEN_TIMEOUT_S)
                try:
                    await self._peers.open(member.node_id, reached, OPEN_TIMEOUT_S)
                    return False
                except (ConnectionEnded, NodeStopped) as error:
                    LOG.debug("%s", error)
            # A look is a handshake with each of them: all who wait together should not be busy with only that.
            pause_s = LOOK_AGAIN_S if contacts.say(seen) else min(2 * pause_s, LOOK_AGAIN_S_MAX)
            self._check()
            if time.monotonic() > deadline:
                raise JoinFailed(f"no group within {self._config.join_timeout_s:g} s: {contacts.awaiting(seen)}; start "
                                 "the others, or look at [network] contacts")
            await asyncio.sleep(pause_s)

    async def until_serving(self, deadline: float) -> None:
        """Returns once enough of the contacts are members, or somebody else of the group serves already. Raises
        JoinFailed."""
        from spindle.joining.contacts import contacts_in, enough

        needed = enough(self._config)
        if needed:
            await self._let_next_in()
        while needed and not any(peer.serves for peer in self._peers.connected.values()):
            self._check()
            assert self._changes.view is not None
            here = contacts_in(self._config, self._changes.view)
            if here >= needed:
                break
            self._changed.clear()
            left_s = max(0.0, deadline - time.monotonic())
            try:
                await within(min(left_s, LOOK_ELSEWHERE_S), self._changed.wait())
            except asyncio.TimeoutError:
                await self._look_elsewhere()
                if time.monotonic() > deadline:
                    raise JoinFailed(f"{here} of {len(self._config.contacts)} contacts are members after "
                                     f"{self._config.join_timeout_s:g} s, {needed} are needed for the group to serve; "
                                     "start the others, or look at [network] contacts and form") from None
        self._peers.standing = opening_pb2.OpeningReply.SERVING

    async def _look_elsewhere(self) -> None:
        """Raises JoinFailed if contacts serve in another group: then this node's never will."""
        assert self._changes.view is not None
        seen = await self._contacts.look()
        other = seen.serving_elsewhere(self._changes.view.group_id)
        if other is not None:
            raise JoinFailed(f"node {other.node_id} serves in a group that this node could not reach, so it began "
                             "another one, which will never serve; start it again")

    async def _contact(self, found: list[LiveSocket], deadline: float) -> None:
        """Introduces this node to all who listen on this host; returns soon after one has answered, as a node that
        hangs may never answer."""

        async def introduce(one: LiveSocket) -> None:
            async def reached() -> Connection:
                return Connection(one.take(), label=f"node {one.node_id}")

            try:
                await self._peers.open(one.node_id, reached, max(0.1, deadline - time.monotonic()))
            except NodeStopped:
                LOG.debug("node %d is just leaving", one.node_id)
            except ConnectionEnded as error:
                LOG.debug("%s", error)

        tasks = {self._spawn(introduce(one)) for one in found}
        while tasks:
            limit = CONTACT_TIMEOUT_S if self._peers.connected else None
            done, tasks = await asyncio.wait(tasks, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            failed = [error for task in done if not task.cancelled() and (error := task.exception()) is not None]
            if failed:
                for task in tasks:
                    task.add_done_callback(_overlooked)
                raise failed[0]
            if not done:
                for task in tasks:
                    task.add_done_callback(self._contacted_late)
                return

    def _contacted_late(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, SpindleError) and self._changes.view is None:
            self._fail(error)
        elif error is not None:  # somebody who had not answered when this node became a member
            LOG.warning("a node that answered late refuses this one: %s", error)

    async def _join(self, deadline: float) -> bool:
        """True when a member; False if all who could let us in have gone. Raises JoinFailed at the deadline."""
        while self._changes.view is None:
            self._check()
            if not self._ways_in() and self._changes.machine.phase is Phase.OUTSIDE:
                return False
            self._changed.clear()
            try:
                await within(max(0.0, deadline - time.monotonic()), self._changed.wait())
            except asyncio.TimeoutError:
                what = self._unmet or self._changes.machine.awaiting()
                raise JoinFailed(f"node {self._node_id} waited {self._config.join_timeout_s:g} s for {what}; see what "
                                 "`spindle status` says of the other nodes") from None
        return True

    async def meet(self, peer: Peer, told: m.CurrentView) -> None:
        """A newcomer connects to all members of the view before it asks to join. A member that it can't reach is dying
        or leaving: it tries again until a newer view says that the member has gone. One that refuses this node, or is
        refused (its certificate has expired), is like that, too: another life of it may not be. Unless nobody on
        another host has anything to do with this node: then it is this one's keys that are wrong."""
        view, me = told.view, self._changes.me
        if self._told[0] == view.group_id and self._told[1] > view.view_id:
            return
        self._told = (view.group_id, view.view_id)
        self._give_up_who_is_not_in(view)
        for member in view.members:
            if member.node_id != me.node_id and not fabric_between(me, member):
                self._fail(JoinFailed(f"{member} offers {_ways(member)}, this node {_ways(me)}: messages have no way "
                                      "between the two; see [network] listen and fabric of both"))
                return
        rest = [member for member in view.members if member.node_id != me.node_id]
        refused: dict[int, SpindleError] = {}  # by node id
        while rest:
            again_s = 0.0
            for member in list(rest):
                given_up = self._changes.view is not None or self._peers.refusing is not None
                if given_up or self._told != (view.group_id, view.view_id):
                    return
                try:
                    if await self._reached(member):
                        rest.remove(member)
                        refused.pop(member.node_id, None)
                except (ConnectionEnded, NodeStopped) as error:
                    LOG.debug("%s", error)
                    self._unmet, again_s = f"a connection to {member}: {error}", REACH_AGAIN_S
                except SpindleError as error:
                    if member.host == me.host or not isinstance(error, (AccessDenied, ProtocolMismatch)):
                        self._fail(error)
                        return
                    if (member.life, str(error)) not in self._warned:
                        self._warned.add((member.life, str(error)))
                        LOG.warning("no connection to %s, without which this node can't be let in: %s", member, error)
                    refused[member.node_id] = error
                    self._unmet, again_s = f"a connection to {member}: {error}", again_s or REFUSED_AGAIN_S
            if refused and refused.keys() >= {one.node_id for one in view.members if one.host != me.host}:
                self._fail(next(iter(refused.values())))
                return
            if again_s:
                await asyncio.sleep(again_s)
        self._unmet = ""
        self._changes.heard(peer.node_id, told)

    async def _reached(self, member: Member) -> bool:
        """Connects to a member; False if the attempt was given up. Raises as Peers.reach."""
        reaching = asyncio.ensure_future(self._peers.reach(member, self._config.join_timeout_s))
        self._reaching[reaching] = member
        try:
            await asyncio.wait({reaching})
        except asyncio.CancelledError:
            reaching.cancel()
            await asyncio.wait({reaching})
            raise
        finally:
            del self._reaching[reaching]
        if reaching.cancelled():
            return False
        reaching.result()
        return True

    def _give_up_who_is_not_in(self, view: View) -> None:
        """Ends attempts to reach lives that are not in the view: a host that has vanished doesn't answer until TCP
        gives up, and while this node waits for one life of a node, it can't reach the next."""
        for reaching, member in self._reaching.items():
            fellow = view.member(member.node_id)
            if fellow is None or fellow.life != member.life:
                reaching.cancel()


def _ways(member: Member) -> str:
    return f"{' and '.join(member.fabrics)} at {member.endpoint or 'its host only'}"


def _overlooked(task: asyncio.Task[None]) -> None:
    """What else failed does not matter any more."""
    if not task.cancelled():
        task.exception()
