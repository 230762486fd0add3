"""View changes: carries out what the membership machine asks for, with the engine, the peers and the topics.

Why apart from the node: the machine decides, the node serves; between them is one straight line from "prepare" to
"install" that must never wait and never be interleaved with anything else.

Rules:
- Actions are carried out in their order, and none of them waits, so a view change takes milliseconds. (A log without
  room for the last messages of an epoch gets them later, see `spindle.topics.local_topic`.)
- Call `drive()` after every input to the machine, and whenever columns have changed. After `stop()` it does nothing,
  and nothing is stored into the own row any more: a node that says Farewell has stopped acting.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from spindle.errors import SpindleError, error_from_wire, shortage
from spindle.group.settings import Settings
from spindle.logs import MEMBER_LOST, NODE_LEFT, VIEW_INSTALLED, about
from spindle.membership import messages as m
from spindle.membership.codec import message_to_wire
from spindle.membership.machine import Machine, Phase
from spindle.membership.preparation import Preparation
from spindle.node.epochs import NextEpoch
from spindle.node.liveness import Liveness
from spindle.topics.table import TopicTable

if TYPE_CHECKING:
    from spindle.config.settings import NodeConfig
    from spindle.group.view import Member, View
    from spindle.transport.peers import Peer, Peers
    from spindle_core.engine import Engine
    from spindle_core.epoch import Epoch

GATHER_S = 0.003  # wait for openings that come together, so that they share one view; shorter than a view change
OPEN_CLAIM_SHARE = 0.25  # of suspect_timeout_s: wait of a wedge for an open direct claim; the loop stands still then
TIDY_S = 0.05  # between two looks whether an old epoch's last posts have arrived
SLOW_CHANGE_S = 1.0  # a view change that takes longer is worth a line in the log
LOG = logging.getLogger("spindle.node")


class Changes:
    """The machine of one node, and what it moves: view, epoch, topics.

    on_installed(view, before)  a view is installed; `before` is the one it follows, None for the node's first
    on_revised(view, before)    its topics have changed
    on_left()                   the node has left in order
    fail(error)                 the node must stop
    """

    def __init__(self, engine: Engine, config: NodeConfig, me: Member, peers: Peers,
                 on_installed: Callable[[View, View | None], None],
                 on_revised: Callable[[View, View | None], None], on_left: Callable[[], None],
                 fail: Callable[[SpindleError], None], on_journal_failure: Callable[[Exception], None]) -> None:
        self.engine, self.me, self.peers = engine, me, peers
        self.machine = Machine(me, Settings(
            config.settings_version, config.suspect_timeout_s, tuple(sorted(config.contacts)), config.form))
        self.next = NextEpoch(engine, peers, me.node_id, self._prepared, self._unfit, fail, config.rdma_device,
                              config.suspect_timeout_s)
        self._preparation = Preparation(self.machine, self.next.lacks)
        self.liveness = Liveness(config, self.machine, self.drive)
        self.topics = TopicTable(engine, config, me.node_id, self.machine, self.drive, on_journal_failure, peers.send,
                                 peers.send_in_turn, peers.lives, peers.keeps_types)
        self.view: View | None = None  # installed
        self.epoch: Epoch | None = None  # its memory
        self._on_installed, self._on_revised, self._on_left, self._fail = on_installed, on_revised, on_left, fail
        self._open_claim_timeout_s = OPEN_CLAIM_SHARE * config.suspect_timeout_s
        self._unreachable: set[int] = set()  # members of the view whose data connection has failed
        self._tidy_timer: asyncio.TimerHandle | None = None
        self._driving = self._stopped = False
        self._prepare_timer: asyncio.TimerHandle | None = None
        self._gather_timer: asyncio.TimerHandle | None = None
        self._slow_timer: asyncio.TimerHandle | None = None
        self._slow_change = (-1, 0)  # view id and ballot of the change that was under way at the timer's last look
        asyncio.get_running_loop().add_reader(engine.control_fd, self._columns_changed)

    def reached_at(self, endpoint: str) -> None:
        """The address of this node, which nobody knows of yet, is that one."""
        assert self.peers.network is not None
        self.peers.network.endpoint = endpoint
        self.me = self.machine.me = self.peers.me = dataclasses.replace(self.me, endpoint=endpoint)

    def members_of(self, node_id: int) -> list[Member]:
        """With this id: in the installed view, and in the next one, which other nodes may have installed already."""
        views = (self.view, self.machine.next_view, self.machine.view)
        return [found for view in views if view is not None and (found := view.member(node_id)) is not None]

    def member_of(self, node_id: int) -> Member | None:
        """The first of these."""
        return next(iter(self.members_of(node_id)), None)

    def stop(self) -> None:
        """No more changes. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        self.liveness.stop()
        asyncio.get_running_loop().remove_reader(self.engine.control_fd)
        for timer in (self._gather_timer, self._prepare_timer, self._slow_timer, self._tidy_timer):
            if timer is not None:
                timer.cancel()
        self.next.close()

    def _columns_changed(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.engine.control_fd)
        self._suspect_unreachable()
        self.drive()
        self.topics.timekeeper.look()
        self.topics.larges.look()

    def _suspect_unreachable(self) -> None:
        """A data connection that broke has lost posts, so its member can't be a part of this epoch any more."""
        if self.epoch is None or self.view is None or self.machine.phase is Phase.GONE:
            return
        for rank, why in self.epoch.failures.items():
            member = self.view.members[rank]
            if member.node_id not in self._unreachable:
                self._unreachable.add(member.node_id)
                self.machine.suspect(member.node_id, f"its data connection: {why}")

    def _prepared(self, ballot: int) -> None:
        if not self._stopped:
            self.machine.prepared(ballot)
            self.drive()

    def _unfit(self, node_id: int, why: str) -> None:
        """A member of the next view offered an invalid row: the group goes on without it, or doesn't let it in."""
        LOG.error("%s", why)
        peer = self.peers.connected.get(node_id)
        if self.view is not None and self.view.rank_of(node_id) is not None:
            self.machine.suspect(node_id, why)
            self.drive()
        elif peer is not None:
            peer.conn.finish()

    def peer_added(self, peer: Peer) -> None:
        """There is a new connection to a node."""
        self.machine.connected(peer.node_id, peer.incarnation)
        self.next.added(peer)
        self.drive()

    def peer_gone(self, member: Member, *, left: bool, why: str, ended: bool) -> None:
        """The connection to a node has ended; see Machine.peer_gone."""
        fellow = self.view.member(member.node_id) if self.view is not None else None
        self.next.gone(member.node_id, again=not ended and (fellow is None or fellow.life != member.life))
        self.drive()  # first what the rows say: members that go on without this node have said so there
        if not self._stopped:
            self.machine.peer_gone(member, left, why, ended)
            self.drive()

    def peer_ended(self, node_id: int, incarnation: int) -> None:
        """It is certain now that this life of a node, whose connection has ended before, never acts again."""
        member = self.machine.view.member(node_id) if self.machine.view is not None else None
        if not self._stopped and member is not None and member.incarnation == incarnation:
            self.machine.ended(node_id)
            self.drive()

    def heard(self, node_id: int, message: m.Message) -> None:
        """A membership message has come."""
        if not self._stopped:
            self.machine.receive(node_id, message)
            self.drive()

    def drive(self) -> None:
        """Steps the machine and carries out what it asks for, until it asks for nothing."""
        if self._driving or self._stopped:
            return
        self._driving = True
        try:
            while not self._stopped:
                self.machine.step()
                actions = self.machine.take_actions()
                if not actions:
                    break
                with self._parked_for(actions):
                    for action in actions:
                        if not self._stopped:
                            self._carry_out(action)
        except SpindleError as error:
            self._fail(error)
        except Exception as error:
            short = shortage(error, "a view change")
            if short is None:
                LOG.exception("membership of node %d", self.me.node_id)
            self._fail(short or SpindleError(f"the membership of node {self.me.node_id} failed by a defect: "
                                    f"{type(error).__name__}: {error}"))
        finally:
            self._driving = False
        if self._slow_timer is None and self._changing():
            self._slow_timer = asyncio.get_running_loop().call_later(SLOW_CHANGE_S, self._say_slow)

    def _parked_for(self, actions: list[m.Action]) -> contextlib.AbstractContextManager[None]:
        """Parks the predicate thread once for the whole end of an epoch, not anew for every log and cursor: on a busy
        host each parking may cost a time slice."""
        if any(isinstance(action, m.Install) for action in actions):
            return self.engine.parked()
        return contextlib.nullcontext()

    def _changing(self) -> bool:
        return not self._stopped and self.machine.phase not in (Phase.OUTSIDE, Phase.STABLE, Phase.GONE)

    def _say_slow(self) -> None:
        """Logs a view change that takes too long, and drives the machine once more, in case a doorbell was lost."""
        self._slow_timer = None
        view = self.machine.next_view
        now = (view.view_id, self.machine.ballot) if view is not None else (-1, 0)
        if self._changing() and view is not None and now == self._slow_change:
            LOG.warning("node %d has waited %g s for %s", self.me.node_id, SLOW_CHANGE_S, self.machine.awaiting())
        self._slow_change = now
        self.drive()

    def _carry_out(self, action: m.Action) -> None:
        if isinstance(action, m.Send):
            sent = self.peers.send(
                action.node_id, message_to_wire(action.message), incarnation=action.incarnation)
            if not sent and isinstance(action.message, m.JoinRequest):
                self.machine.unreachable(action.node_id)
        elif isinstance(action, m.Gather):
            self._gather_timer = asyncio.get_running_loop().call_later(GATHER_S, self._gathered)
        elif isinstance(action, m.Prepare):
            self._preparation.begins(action.ballot, asyncio.get_running_loop().time())
            self._watch_preparation()
            self.next.prepare(action.view, action.ballot)
        elif isinstance(action, m.Wedge):
            self.engine.wedge(action.ballot, open_claim_timeout_s=self._open_claim_timeout_s)
        elif isinstance(action, m.Cut):
            self._cut(action)
        elif isinstance(action, m.DeliverToTrim):
            assert self.view is not None
            self.topics.deliver_to_trim(self.view, action.trims)
        elif isinstance(action, m.Install):
            self._install(action.view)
        elif isinstance(action, m.Revise):
            self._revise(action.view)
        elif isinstance(action, m.Left):
            LOG.info("node %d has left", self.me.node_id, extra=about(NODE_LEFT))
            self._on_left()
        elif isinstance(action, m.Rejected):
            if action.request_id == 0:
                self._fail(error_from_wire(action.kind, action.text))
            self.topics.rejected(action)
        elif isinstance(action, m.Failed):
            self._fail(error_from_wire(action.kind, action.text))

    def _gathered(self) -> None:
        self.machine.gathered()
        self.drive()

    def _watch_preparation(self) -> None:
        if self._prepare_timer is not None:
            self._prepare_timer.cancel()
            self._prepare_timer = None
        if not self._stopped and self._preparation.due_s is not None:
            self._prepare_timer = asyncio.get_running_loop().call_at(self._preparation.due_s, self._preparation_is_due)

    def _preparation_is_due(self) -> None:
        lacks, joiners = self._preparation.look(asyncio.get_running_loop().time())
        if lacks:
            LOG.warning("view change: this node still lacks %s", "; ".join(
                f"node {node_id} ({why})" for node_id, why in sorted(lacks.items())))
        self.drive()  # sends what this node lacks, or who is left out
        for joiner in joiners:
            LOG.warning("%s could not be let in: it is left out", joiner)
            if self._connected(joiner):
                self.peers.connected[joiner.node_id].conn.finish()
        self._watch_preparation()

    def _cut(self, action: m.Cut) -> None:
        assert self.view is not None
        member = self.view.members[action.rank]
        LOG.warning("node %d goes on without %s: %s", self.me.node_id, member, action.why,
                    extra=about(MEMBER_LOST, member=member.node_id, member_pid=member.pid, why=action.why))
        self.engine.cut(action.rank)
        self.peers.cast_out(member.node_id, member.incarnation, action.why)

    def _install(self, view: View) -> None:
        before, epoch = self.view, self.next.take(view.view_id)
        self.topics.before_install(view)
        unsent = self.engine.install(epoch)
        self.epoch, self.view = epoch, view
        self._unreachable.clear()
        self._tidy()
        self.machine.installed(epoch)
        self._take_settings(view.settings, before)
        self.liveness.installed(epoch, view.settings.suspect_timeout_s)
        for topic_id, count in unsent.items():
            LOG.warning("topic %d: %d messages of closed writers were not sent", topic_id, count)
        members = " ".join(map(str, view.node_ids))
        LOG.info("view %d: nodes %s", view.view_id, members,
                 extra=about(VIEW_INSTALLED, node=self.me.node_id, view=view.view_id, members=members))
        self.topics.installed(view)
        self.next.installed(view)
        for node_id in list(self.peers.connected):
            if view.rank_of(node_id) is None:
                self.peers.send(node_id, message_to_wire(m.CurrentView(view)))
        self._on_installed(view, before)
        for member in view.members:
            if member.node_id != self.me.node_id and not self._connected(member):
                self.machine.peer_gone(member, why="it is not connected", ended=False)

    def _revise(self, view: View) -> None:
        """Topics without members have come or gone: the epoch stays."""
        before, self.view = self.view, view
        self.topics.revised(view)
        self._on_revised(view, before)

    def _take_settings(self, settings: Settings, before: View | None) -> None:
        """The group's settings are this node's from now on, whatever its file says."""
        if not settings.version or (before is not None and before.settings == settings):
            return
        mine = self.machine.settings
        self._open_claim_timeout_s = OPEN_CLAIM_SHARE * settings.suspect_timeout_s
        self.next.set_timeout(settings.suspect_timeout_s)
        LOG.info("the group's settings are version %d: suspect_timeout_s = %g, form = %s, contacts = %s",
                 settings.version, settings.suspect_timeout_s, settings.form, ", ".join(settings.contacts) or "none")
        if differences := settings.differences(mine):
            LOG.warning("the group has other settings than this node's configuration (version %d), and they count: %s. "
                        "Change the file; or, to change the group's, give it a [membership] settings_version above %d "
                        "and start this node again", mine.version, differences, settings.version)

    def _tidy(self) -> None:
        """The last posts of the epoch before may still be on their way to members on other hosts."""
        if self._tidy_timer is not None:
            self._tidy_timer.cancel()
        self._tidy_timer = None
        if not self.engine.tidy() and not self._stopped:
            self._tidy_timer = asyncio.get_running_loop().call_later(TIDY_S, self._tidy)

    def _connected(self, member: Member) -> bool:
        peer = self.peers.connected.get(member.node_id)
        return peer is not None and peer.incarnation == member.incarnation
