"""The memory of the next epoch: made while the current one carries traffic, and exchanged with the other members.

Why here and not in the machine: descriptors travel over connections that may have to be made first, and in any order.
The machine asks for a view to be prepared and hears when it is; everything in between is this module's.

Rules:
- An offer hands over a member's row and doorbell for one ballot of one view; to a member on another host, what that
  member needs for a copy of the row. Offers may come before this node has begun to prepare; up to OFFERS_MAX are kept,
  and closed when their view, or a later one, is installed.
- Of two members that are not connected, the one of higher rank connects, and tries until the view is given up. It also
  opens their data connection, once it has been told the token for it. Each end counts the other as attached when it
  has the other's offer and the connection.
- A member that can't be reached, or whose row doesn't fit, ends no other node: the view stays unprepared until the
  leader proposes another; `lacks()` tells whom this node waits for, and why.
- Connections over RDMA are the node's, and outlive views: each epoch borrows those of its members (`_pairs_for`). An
  end that was made anew since the offer went out is offered once more.
- Memory or descriptors that run out here are this node's failure, never the failure of the member that they were
  needed for. For its own row the node tries again for a while, as others may give something back; then it ends.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import secrets
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from spindle.errors import ConnectionEnded, MembershipError, NoResources, SpindleError, shortage
from spindle.group.layout import subgroups_of
from spindle.group.view import SHM, TCP, VERBS, fabric_between
from spindle.node.reserve import Reserve
from spindle.proto import node_pb2 as pb
from spindle.transport.network import DataHello
from spindle.transport.wire import close_all

if TYPE_CHECKING:
    from spindle.group.view import Member, View
    from spindle.transport.peers import Peer, Peers
    from spindle_core.ends import Ringer
    from spindle_core.engine import Engine
    from spindle_core.epoch import Epoch
    from spindle_core.fabric.fabric import Fabric
    from spindle_core.fabric.verbs_pairs import VerbsPairs

Key = tuple[int, int, int]  # group id, view id, ballot
TOKEN_BYTES = 32
STREAM_TIMEOUT_S = 4.0  # for a data connection to be made
SHORT_WAIT_S = 4.0  # for what the own row needs to come free
OFFERS_MAX = 1024  # kept for views that this node has not begun to prepare
OFFER_FDS = 3  # row, doorbell page, the ring of the member that offers (spindle_core.ends.Ringer)
PAIRS_MIN = 64  # to members over RDMA: groups up to half as large keep theirs for ever
REACH_AGAIN_S = 0.05  # between two attempts to reach somebody
LOG = logging.getLogger("spindle.node")


@dataclasses.dataclass
class Offer:
    """A member's row: descriptors, or what its copy needs."""

    fds: list[int]
    remote: pb.RemoteRow | None

    def close(self) -> None:
        """Closes the descriptors."""
        close_all(self.fds)
        self.fds = []


class NextEpoch:
    """What is being prepared.

    on_ready(ballot)         all rows are exchanged
    on_unfit(node_id, why)   this member of the view offered an invalid row
    on_error(error)          the own memory can't be made, or something for another member has run out here
    """

    def __init__(self, engine: Engine, peers: Peers, node_id: int, on_ready: Callable[[int], None],
                 on_unfit: Callable[[int, str], None], on_error: Callable[[SpindleError], None],
                 rdma_device: str = "", suspect_timeout_s: float = 2.0) -> None:
        self._rdma_device, self._suspect_timeout_s = rdma_device, suspect_timeout_s
        self._engine, self._peers, self._node_id = engine, peers, node_id
        self._on_ready, self._on_unfit, self._on_error = on_ready, on_unfit, on_error
        self._view: View | None = None
        self._ballot = 0
        self._epoch: Epoch | None = None
        self._missing: set[int] = set()  # node ids whose row is not attached yet
        self._offered: set[int] = set()  # node ids that have ours
        self._offers: dict[Key, dict[int, Offer]] = {}  # early ones
        self._tokens: dict[int, bytes] = {}  # by node id: secret that we told it, for its data connection
        self._remote: dict[int, pb.RemoteRow] = {}  # by node id: what it said of its row
        self._addresses: dict[int, bytes] = {}  # by node id: what we have offered over RDMA
        self._pairs: VerbsPairs | None = None
        self._streams: dict[int, int] = {}  # by node id: its data connection, before its offer has come
        self._connecting: set[asyncio.Task[None]] = set()
        self._problems: dict[int, SpindleError] = {}  # by node id: why it can't be reached so far
        self._lack: NoResources | None = None  # why there is no memory of the own row yet
        self._short_until = 0.0  # loop time until which memory for the own row is tried for
        self._again: asyncio.TimerHandle | None = None
        self.reserve = Reserve()
        self._ringers: dict[int, Ringer] = {}  # by node id: the ring by which this node will wake it
        self._heard: dict[int, int] = {}  # by node id: descriptor by which it will wake this node
        self._heard_installed: list[int] = []  # the same, of the installed epoch

    def set_timeout(self, suspect_timeout_s: float) -> None:
        """The group's agreed suspect_timeout_s, for the views to come."""
        self._suspect_timeout_s = suspect_timeout_s

    def prepare(self, view: View, ballot: int) -> None:
        """Begins; forgets what was prepared before. Calls on_ready at once where there is nobody to wait for."""
        self.discard()
        self._lack = None
        self._short_until = asyncio.get_running_loop().time() + SHORT_WAIT_S
        rank = view.rank_of(self._node_id)
        if rank is None:  # this node leaves
            self._on_ready(ballot)
        else:
            self.reserve.release()
            self._make(view, ballot, rank)

    def _make(self, view: View, ballot: int, rank: int) -> None:
        self._again = None
        fabric = None
        try:
            fabric = self._fabric(view, rank)
            self._epoch = self._engine.new_epoch(view.view_id, rank, view.node_ids, subgroups_of(view), fabric)
            self._make_ringers(view)
        except (ValueError, OSError, MemoryError) as error:
            self._drop_ringers()
            if self._epoch is not None:
                self._epoch.close()
            elif fabric is not None:
                fabric.close()  # what it has registered
            self._epoch = None
            short = shortage(error, f"view {view.view_id}")
            loop = asyncio.get_running_loop()
            first, self._lack = self._lack is None, short
            if short is not None and loop.time() < self._short_until:
                if first:
                    LOG.warning("%s; waiting up to %g s for it", short, SHORT_WAIT_S)
                self._again = loop.call_later(REACH_AGAIN_S, self._make, view, ballot, rank)
                return
            self._on_error(short or MembershipError(f"the memory of view {view.view_id} cannot be made: {error}"))
            return
        self._view, self._ballot = view, ballot
        self._missing = set(view.node_ids) - {self._node_id}
        for node_id in sorted(self._missing):
            if node_id in self._peers.connected:
                self._offer(node_id)
            else:
                self._connect(node_id)
        for node_id, offer in self._offers.pop((view.group_id, view.view_id, ballot), {}).items():
            self._attach(node_id, offer)
        self._look()

    def _make_ringers(self, view: View) -> None:
        me = view.member(self._node_id)
        assert me is not None and self._epoch is not None
        self._ringers = self._epoch.make_ringers(
            (other.node_id for other in view.members if other is not me and fabric_between(me, other) == SHM),
            self._engine.all_fd)

    def _fabric(self, view: View, rank: int) -> Fabric | None:
        """What this view's members are reached by; None if all are on this host."""
        me = view.members[rank]
        used = {fabric_between(me, other) for other in view.members if other is not me}
        if used <= {SHM}:
            return None
        from spindle_core.fabric.mixed import MixedFabric
        from spindle_core.fabric.shm import ShmFabric
        from spindle_core.fabric.tcp import TcpFabric

        engine, n = self._engine, len(view.members)
        parts: dict[str, Fabric] = {SHM: ShmFabric(rank, n, engine.bell, engine.bell_fd)}
        if TCP in used:
            parts[TCP] = TcpFabric(rank, n, failed_fd=engine.control_fd)
        if VERBS in used:
            from spindle.rdma.network import ack_timeout
            from spindle_core.fabric.verbs import VerbsFabric  # loads libibverbs: only where it is used

            parts[VERBS] = VerbsFabric(
                rank, n, pairs=self._pairs_for(n), names=[(view.group_id, *member.life) for member in view.members],
                epoch=view.view_id, ack_timeout=ack_timeout(self._suspect_timeout_s))
        return MixedFabric(parts, engine.bell_fd)

    def _pairs_for(self, n: int) -> VerbsPairs:
        """The connections of this node, as many as a view of n members may need: each one, and what takes its place.
        A group that outgrows them gets new ones."""
        from spindle_core.fabric.verbs_pairs import VerbsPairs

        if self._pairs is not None and self._pairs.kept:
            self._engine.tidy()  # views that were given up have left some
        if self._pairs is None or self._pairs.room < 2 * n:
            room = max(PAIRS_MIN, 1 << (2 * n - 1).bit_length())
            self._pairs = VerbsPairs(device=self._rdma_device, failed_fd=self._engine.control_fd, pairs=room)
        return self._pairs

    def _path(self, node_id: int) -> str:
        """The fabric between this node and another one of the view that is being prepared."""
        assert self._view is not None
        me, other = self._view.member(self._node_id), self._view.member(node_id)
        assert me is not None and other is not None
        return fabric_between(me, other)

    def _connect(self, node_id: int, pause_s: float = 0.0) -> None:
        """Begins to connect to a node of the view, if that is this node's part."""
        view = self._view
        assert view is not None
        mine, other = view.rank_of(self._node_id), view.rank_of(node_id)
        if mine is not None and other is not None and other < mine:
            self._keep(self._reach(view, self._ballot, node_id, pause_s))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _reach(self, view: View, ballot: int, node_id: int, pause_s: float) -> None:
        member = view.member(node_id)
        assert member is not None
        await asyncio.sleep(pause_s)
        while self._view is view and self._ballot == ballot:
            try:
                await self._peers.reach(member, timeout_s=5.0)  # added() makes the offer
                return
            except SpindleError as error:
                self._problems[node_id] = error
                LOG.debug("view %d: %s", view.view_id, error)
                await asyncio.sleep(REACH_AGAIN_S)

    def lacks(self, ballot: int) -> dict[int, str]:
        """Node ids whose memory isn't attached yet for this ballot, with what is known of why. What has run out here is
        reported by on_error instead."""
        if self._view is None or self._ballot != ballot:
            return {}
        network = self._peers.network
        for error in [network.short if network is not None else None, *self._problems.values()]:
            if isinstance(error, NoResources) and self._missing:
                self._on_error(error)
                return {}
        return {node_id: str(self._problems.get(node_id, "its memory has not come")) for node_id in self._missing}

    def added(self, peer: Peer) -> None:
        """A node is connected now."""
        if self._view is not None and peer.node_id in self._view.node_ids:
            self._offer(peer.node_id)

    def gone(self, node_id: int, again: bool) -> None:
        """A node is not connected any more; should it come back, it may have missed the offer. `again`: its connection
        was all that ended, so it is tried again."""
        self._offered.discard(node_id)
        if again and self._view is not None:
            self._connect(node_id, REACH_AGAIN_S)

    def _offer(self, node_id: int) -> None:
        if self._epoch is None or self._view is None or node_id in self._offered:
            return
        self._offered.add(node_id)
        offer = pb.RowOffer(group_id=self._view.group_id, view_id=self._view.view_id, ballot=self._ballot)
        fds: list[int] = []
        if self._path(node_id) == SHM:
            fds = [self._epoch.row.fd, self._engine.bell.fd, self._ringers[node_id].heard]
        else:
            offer.remote.layout_hash, offer.remote.row_size = self._epoch.layout_hash(), self._epoch.row.size
        if self._path(node_id) == VERBS:
            self._addresses[node_id] = self._epoch.verbs_address(self._view.rank_of(node_id))
            offer.remote.rdma_address = self._addresses[node_id]
        elif self._path(node_id) == TCP:
            offer.remote.token = self._tokens.setdefault(node_id, secrets.token_bytes(TOKEN_BYTES))
        self._peers.send(node_id, pb.PeerMessage(row_offer=offer), fds)

    def take_offer(self, node_id: int, message: pb.RowOffer, fds: list[int]) -> None:
        """A member's row. Raises MembershipError if it came with neither its descriptors nor what replaces them."""
        remote = message.HasField("remote")
        if len(fds) != (0 if remote else OFFER_FDS):
            close_all(fds)
            raise MembershipError(f"node {node_id} offered its row with {len(fds)} descriptors, not {OFFER_FDS}")
        offer = Offer(fds, message.remote if remote else None)
        key = message.group_id, message.view_id, message.ballot
        if self._view is not None and key == (self._view.group_id, self._view.view_id, self._ballot):
            self._attach(node_id, offer)
            self._look()
            return
        if sum(len(offers) for offers in self._offers.values()) >= OFFERS_MAX:
            offer.close()
            raise MembershipError(f"more than {OFFERS_MAX} rows are offered for views that nobody proposed here")
        early = self._offers.setdefault(key, {})
        if node_id in early:
            early.pop(node_id).close()
        early[node_id] = offer

    def _attach(self, node_id: int, offer: Offer) -> None:
        if self._view is None or self._epoch is None:  # given up meanwhile
            offer.close()
            return
        rank = self._view.rank_of(node_id)
        if rank is None or node_id not in self._missing:
            offer.close()
            return
        member = self._view.members[rank]
        if (offer.remote is None) != (self._path(node_id) == SHM):
            offer.close()
            self._on_unfit(node_id, f"{member} offered its row in another way than the view says")
            return
        if self._path(node_id) == TCP:
            assert offer.remote is not None
            self._remote[node_id] = offer.remote
            mine = self._view.rank_of(self._node_id)
            assert mine is not None
            if mine > rank:
                self._keep(self._open_stream(self._view, self._ballot, member, offer.remote))
            else:
                self._attach_stream(node_id)
            return
        try:
            if offer.remote is None:
                row_fd, page_fd, heard_fd = offer.fds
                try:
                    self._hear(node_id, heard_fd)
                    ring_fd = os.dup(self._ringers[node_id].fd)
                except BaseException:
                    close_all((row_fd, page_fd))
                    raise
                self._epoch.attach_peer(rank, row_fd, page_fd, ring_fd)
            else:
                attached = self._epoch.attach_verbs(rank, offer.remote.rdma_address, member.incarnation,
                                                    offer.remote.layout_hash, offer.remote.row_size)
                if self._epoch.verbs_address(rank) != self._addresses.get(node_id) and node_id in self._offered:
                    self._offered.discard(node_id)
                    self._offer(node_id)  # our end was made anew
                if not attached:
                    self._problems[node_id] = ConnectionEnded("its offer is for a connection over RDMA that has ended")
                    return
        except (ValueError, OSError, MemoryError) as error:
            self._not_attached(member, error)
            return
        if self._epoch.row_identity(rank)[1] != member.incarnation:
            self._on_unfit(node_id, f"{member} offered the row of another of its lives")
            return
        self._missing.discard(node_id)

    def _not_attached(self, member: Member, error: Exception) -> None:
        """Tells three failures apart: something has run out here, there is no way to the member, its row is invalid."""
        short = shortage(error, f"the memory of {member}")
        if short is not None:
            self._on_error(short)
        elif isinstance(error, OSError):
            self._problems[member.node_id] = ConnectionEnded(f"no way to its memory: {error}")
        else:
            self._on_unfit(member.node_id, f"the row of {member} does not fit: {error}")

    def _drop_ringers(self) -> None:
        for ringer in self._ringers.values():
            ringer.close()
        self._ringers.clear()

    def _hear(self, node_id: int, fd: int) -> None:
        """Takes over the descriptor by which this member rings us. Raises OSError."""
        try:
            self._engine.hear(fd)
        except BaseException:
            os.close(fd)
            raise
        if node_id in self._heard:
            self._unhear([self._heard.pop(node_id)])
        self._heard[node_id] = fd

    def _unhear(self, fds: Iterable[int]) -> None:
        for fd in fds:
            self._engine.unhear(fd)
            os.close(fd)

    # --- data connections

    async def _open_stream(self, view: View, ballot: int, member: Member, remote: pb.RemoteRow) -> None:
        me, network = view.member(self._node_id), self._peers.network
        assert me is not None and network is not None
        hello = DataHello(self._peers.domain_id, me.node_id, me.incarnation, member.node_id, view.group_id,
                          view.view_id, ballot)
        while self._view is view and self._ballot == ballot and member.node_id in self._missing:
            try:
                fd = await network.data(member.endpoint, hello, member.incarnation, remote.token,
                                        STREAM_TIMEOUT_S)
            except SpindleError as error:
                self._problems[member.node_id] = error
                LOG.debug("view %d: %s", view.view_id, error)
                await asyncio.sleep(REACH_AGAIN_S)
                continue
            if self._view is view and self._ballot == ballot and member.node_id in self._missing:
                self._streams[member.node_id] = fd
                self._attach_stream(member.node_id)
                self._look()
            else:
                os.close(fd)

    def token_for(self, hello: DataHello) -> bytes | None:
        """The token that the opener of this data connection was told; None if no such connection is expected."""
        view = self._view
        if view is None or self._peers.domain_id != hello.domain_id or hello.to_node_id != self._node_id:
            return None
        member = view.member(hello.node_id)
        if (hello.group_id, hello.view_id, hello.ballot) != (view.group_id, view.view_id, self._ballot):
            return None
        if member is None or member.incarnation != hello.incarnation or hello.node_id not in self._missing:
            return None
        return self._tokens.get(hello.node_id)

    def take_stream(self, hello: DataHello, fd: int) -> None:
        """A data connection whose opener has proved who it is."""
        if self.token_for(hello) is None:  # the view was given up meanwhile
            os.close(fd)
            return
        del self._tokens[hello.node_id]
        if hello.node_id in self._streams:
            os.close(self._streams.pop(hello.node_id))
        self._streams[hello.node_id] = fd
        self._attach_stream(hello.node_id)
        self._look()

    def _attach_stream(self, node_id: int) -> None:
        """Attaches a member on another host, once its offer and the data connection are there."""
        assert self._view is not None and self._epoch is not None
        remote = self._remote.get(node_id)
        if remote is None or node_id not in self._streams or node_id not in self._missing:
            return
        rank = self._view.rank_of(node_id)
        assert rank is not None
        member = self._view.members[rank]
        try:
            self._epoch.attach_stream(
                rank, self._streams.pop(node_id), member.incarnation, remote.layout_hash, remote.row_size)
        except (ValueError, OSError, MemoryError) as error:
            self._not_attached(member, error)
            return
        self._missing.discard(node_id)

    def _look(self) -> None:
        if self._view is None or self._missing:
            return
        assert self._epoch is not None
        try:
            self._epoch.populate(self._engine.epoch)
        except OSError as error:
            self._on_error(shortage(error, f"view {self._view.view_id}") or MembershipError(
                f"the memory of view {self._view.view_id} cannot be had: {error}"))
            return
        self._on_ready(self._ballot)

    def take(self, view_id: int) -> Epoch:
        """The prepared epoch, to be installed; early offers for this view, older ones and other groups are closed."""
        epoch, self._epoch = self._epoch, None
        if epoch is None and self._lack is not None:  # a group's first view is installed without waiting for memory
            raise self._lack
        if epoch is None or self._view is None or self._view.view_id != view_id or self._missing:
            raise MembershipError(f"view {view_id} is to be installed but was not prepared")
        group_id = self._view.group_id
        self._unhear(self._heard_installed)
        self._heard_installed, self._heard = list(self._heard.values()), {}
        self._forget()
        for key in [key for key in self._offers if key[0] != group_id or key[1] <= view_id]:
            for offer in self._offers.pop(key).values():
                offer.close()
        return epoch

    def installed(self, view: View) -> None:
        """All that belongs to this view has been made, its topics' logs too: what the next one needs is kept again."""
        if self.reserve.wanted:
            self.reserve.want(len(view.members))

    def _forget(self) -> None:
        """Gives up what belongs to the view that was prepared."""
        self._view = None
        self._missing.clear()
        self._offered.clear()
        self._tokens.clear()
        self._remote.clear()
        self._addresses.clear()
        self._problems.clear()
        close_all(self._streams.values())
        self._streams.clear()
        self._unhear(self._heard.values())
        self._heard.clear()
        self._drop_ringers()

    def discard(self) -> None:
        """Gives up what is being prepared."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._epoch is not None:
            self._epoch.close()
        self._epoch = None
        self._forget()
        for task in self._connecting:
            task.cancel()

    def close(self) -> None:
        """Gives up everything. Idempotent."""
        self.discard()
        for offers in self._offers.values():
            for offer in offers.values():
                offer.close()
        self._offers.clear()
        self._unhear(self._heard_installed)
        self._heard_installed.clear()
        self.reserve.close()

    def disconnect(self) -> None:
        """Ends the connections that outlive views. After the engine, which drives them. Idempotent."""
        if self._pairs is not None:
            self._pairs.close()
