"""Sites with rules: nodes of several hosts show each other certificates, a user of the host may use some topics and not
others, and strangers try every door.

Nobody gets what the rules don't give him (A1), nobody hears of a topic that he may neither write nor read (A2), and no
stranger is let in (A3).
"""

from __future__ import annotations

import contextlib
import functools
import ssl
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spindle.client.attaching import attach
from spindle.client.nodes import NodeAddresses, connect
from spindle.client.remote import attach_remote
from spindle.config.settings import NodeConfig
from spindle.config.users import AccessRule
from spindle.errors import AccessDenied, SpindleError, TopicUnknown
from spindle.group.topics import TopicSpec
from spindle.joining.bootstrap import socket_path
from spindle.proto import opening_pb2
from spindle.security.identity import APPLICATION, NODE
from spindle.security.trust import Trust
from spindle.transport.local import connect as connect_here
from spindle.transport.names import HostNames
from spindle.transport.opening import MAGIC, PROTOCOL
from spindle.transport.wire_blocking import BlockingConnection
from spindle_lab.whole.keys import Keys, written
from spindle_lab.whole.liars import STRANGER
from spindle_lab.whole.programs import Program
from spindle_lab.whole.remotes import OUTSIDE
from spindle_lab.whole.violation import Violation

if TYPE_CHECKING:
    from spindle_lab.whole.slots import NodeSlot
    from spindle_lab.whole.world import World

GUEST = 4243  # a user whom the rules give something
SITE, OTHER_SITE = "site", "other"  # authorities
CREW, CURIOUS = "crew", "curious"  # applications on the host without a node: one may do everything, one nothing
EXPECTED = (SpindleError, OSError, TimeoutError)


class Guard:
    """The rules of one run."""

    def __init__(self, world: World) -> None:
        self._directory: Path = world.base / "keys"
        names = [spec.name for spec in world.specs]
        rng = world.system.random
        self.published = {name for name in names if rng.random() < 0.5}
        self.subscribed = {name for name in names if rng.random() < 0.5}

    @property
    def seen(self) -> set[str]:
        """Topics that the guest may know of."""
        return self.published | self.subscribed

    def keys(self, name: str, uri: str, authority: str = SITE) -> Keys:
        """The files of one end."""
        return written(self._directory, name, authority, uri)

    def node_keys(self, node_id: int, authority: str = SITE) -> Keys:
        """Those of a node, which no other one may use."""
        return self.keys(f"node-{node_id}", f"spindle:node:{node_id}", authority)

    def application_keys(self, name: str, authority: str = SITE) -> Keys:
        """Those of an application on another host."""
        return self.keys(name, f"spindle:application:{name}", authority)

    def config(self, slot: NodeSlot) -> dict[str, Any]:
        """What it adds to a node's configuration."""
        keys = self.node_keys(slot.node_id)
        rules = (AccessRule(uid=GUEST, publish=tuple(sorted(self.published)), subscribe=tuple(sorted(self.subscribed))),
                 AccessRule(application=CREW, publish=("*",), subscribe=("*",)))
        return {"certificate": keys.certificate, "certificate_key": keys.key, "authority": keys.authority,
                "plain": False, "allow_uids": (GUEST,), "access_rules": rules}

    def addresses(self, addresses: tuple[str, ...], keys: Keys | None = None) -> NodeAddresses:
        """Nodes, and what to show to them."""
        keys = keys or self.application_keys(CREW)
        return NodeAddresses(addresses, certificate=keys.certificate, key=keys.key, authority=keys.authority)


class Guest(Program):
    """An application of a user who may use some topics. It asks for others, too."""

    def __init__(self, world: World, number: int, host: str) -> None:
        assert world.guard is not None
        self.guard = world.guard
        super().__init__(world, number, host, "g", GUEST)

    def _refused(self, act: Callable[[], object], what: str) -> None:
        self.doing = f"trying {what}"
        try:
            act()
        except AccessDenied:
            self.world.met("a guest is refused")
        except TopicUnknown as error:
            raise Violation("A2", f"{self.process}, which no rule allows {what}, learns that it isn't there") from error
        else:
            raise Violation("A1", f"{self.process} may do {what}, which no rule allows")

    def _open_reader_of(self, spec: TopicSpec, keep_all: bool, from_history: bool | None = None) -> None:
        if spec.name in self.guard.subscribed:
            super()._open_reader_of(spec, keep_all, from_history)
            return
        session = self.session
        assert session is not None
        self._refused(lambda: session.open_reader(spec.name, keep_all=keep_all, from_history=False),
                      f"a reader of {spec.name!r}")
        self._declare_refused(spec)

    def _open_writer_of(self, spec: TopicSpec) -> None:
        if spec.name in self.guard.published:
            super()._open_writer_of(spec)
            return
        session = self.session
        assert session is not None
        self._refused(lambda: session.open_writer(spec.name), f"a writer of {spec.name!r}")
        self._declare_refused(spec)

    def _declare_refused(self, spec: TopicSpec) -> None:
        session = self.session
        assert session is not None
        if spec.name not in self.guard.seen:
            self._refused(lambda: session.declare_topic(spec), f"a declaration of {spec.name!r}")

    def _delete(self) -> None:
        spec, session = self._spec(), self.session
        assert session is not None
        if spec.name not in self.guard.seen:
            self._refused(lambda: session.delete_topic(spec.name), f"a deletion of {spec.name!r}")

    def _look(self) -> None:
        assert self.session is not None
        self.doing = "looking around"
        self._may_see((one.spec.name for one in self.session.topics()), "topics")
        self._may_see((one.topic for one in self.session.endpoints()), "endpoints")
        status = self.session.status()
        self._may_see((one["name"] for one in status["topics"]), "the status")

    def _may_see(self, names: Iterable[str], where: str) -> None:
        if hidden := sorted(set(names) - self.guard.seen):
            raise Violation("A2", f"{self.process} is shown {hidden} among {where}, and may not know of them")

    def _difference(self) -> str:
        """Looks only at what it may see; other programs compare the rest of the group."""
        self._look()
        if self.watching is not None:
            self._may_see((one.topic for one in self.watching.endpoints.values()), "what it is told")
        return ""


class Stranger:
    """A process that should get nowhere. On another host it has no keys, or those of another site, or those of an
    application that may do nothing here, or of a node that it is not; on a host with nodes it is of a user whom no rule
    names."""

    def __init__(self, world: World, number: int, host: str = OUTSIDE) -> None:
        assert world.guard is not None
        self.world, self.guard, self.rng = world, world.guard, world.system.random
        self.host = host
        self.process = world.system.process(f"s{number}", host, world.uid if host == OUTSIDE else STRANGER)
        self.process.spawn(self._main)

    def _main(self) -> None:
        attempts: tuple[Callable[[int], None], ...] = (
            self.as_node_without_keys, self.as_node_of_another_site, self.as_another_node,
            self.as_node_with_application_keys, self.as_application)
        if self.host != OUTSIDE:
            attempts = self.as_application_of_the_host, self.as_node_of_the_host
        there = [one.node_id for one in self.world.nodes if self.host in (OUTSIDE, one.host)]
        while not self.world.finishing:
            attempt = self.rng.choice(attempts)
            self.world.met(f"a stranger: {attempt.__name__}")
            with contextlib.suppress(*EXPECTED):
                attempt(self.rng.choice(there))
            time.sleep(self.rng.choice((0.01, 0.05, 0.1)))
        self.process.result = "done"

    # --- on a host with nodes

    def as_application_of_the_host(self, node_id: int) -> None:
        """Of a user whom no rule names."""
        with contextlib.closing(attach(runtime_dir=self.world.runtime_dir(self.host), node_id=node_id, timeout_s=1.0)):
            raise Violation("A3", f"an application of a user whom no rule names attaches to node {node_id}")

    def as_node_of_the_host(self, node_id: int) -> None:
        """Of the same user."""
        config = NodeConfig(runtime_dir=self.world.runtime_dir(self.host))
        with contextlib.closing(BlockingConnection(connect_here(str(socket_path(config, node_id))))) as conn:
            self._introduced(conn, 90, f"node {node_id}")

    # --- on another one

    def _trust(self, keys: Keys, role: str = NODE, blind: bool = False) -> Trust:
        """`blind`: it takes whatever the other end shows."""
        trust = Trust.of_certificates(keys.certificate, keys.key, keys.authority, role)
        if blind:
            trust.context(server_side=False).verify_mode = ssl.CERT_NONE
        return trust

    def _opens(self, node_id: int, trust: Trust, claimed: int) -> None:
        """As a node."""
        address = self.world.endpoint(node_id)
        with contextlib.closing(connect(address, HostNames([address]), trust, 1.0)) as conn:
            self._introduced(conn, claimed, f"the node at {address}")

    def _introduced(self, conn: BlockingConnection, claimed: int, whom: str) -> None:
        role = self.rng.choice((opening_pb2.PEER, opening_pb2.CONTACT))
        conn.send(opening_pb2.Opening(
            magic=MAGIC, role=role, protocol=PROTOCOL, node_id=claimed, incarnation=self.rng.getrandbits(32) + 1,
            settings=NodeConfig().agreed_settings).SerializeToString())
        reply = opening_pb2.OpeningReply.FromString(conn.receive(1.0).body)
        if not reply.kind or reply.group_id or reply.incarnation:
            raise Violation("A3", f"a stranger is taken for node {claimed} by {whom}: {reply}")

    def as_node_without_keys(self, node_id: int) -> None:
        """In a group that has keys."""
        self._opens(node_id, Trust("plain", plain_anywhere=True), 90)

    def as_node_of_another_site(self, node_id: int) -> None:
        """Whose certificates look as those of this one."""
        self._opens(node_id, self._trust(self.guard.node_keys(90, OTHER_SITE), blind=True), 90)

    def as_another_node(self, node_id: int) -> None:
        """With a certificate that is for one node only."""
        self._opens(node_id, self._trust(self.guard.node_keys(91)), 90)

    def as_node_with_application_keys(self, node_id: int) -> None:
        """With a certificate that is for no node."""
        self._opens(node_id, self._trust(self.guard.application_keys(CREW), APPLICATION), 90)

    def as_application(self, node_id: int) -> None:
        """Of another site, or of this one and without rights."""
        address = self.world.endpoint(node_id)
        if self.rng.random() < 0.5:
            trust = self._trust(self.guard.application_keys(CREW, OTHER_SITE), APPLICATION, blind=True)
            with contextlib.closing(connect(address, HostNames([address]), trust, 1.0)):
                raise Violation("A3", f"an application of another site is let in at {address}")
        session = attach_remote(self.guard.addresses((address,), self.guard.application_keys(CURIOUS)),
                                name=str(self.process), patience_s=0.0)
        with contextlib.closing(session):
            for spec in self.world.specs:
                self._denied(session.declare_topic, spec)
                self._denied(session.open_writer, spec.name)
                self._denied(functools.partial(session.open_reader, keep_all=False, from_history=False), spec.name)
            if session.topics() or session.endpoints():
                raise Violation("A2", f"an application without rights is shown topics at {address}")

    def _denied(self, act: Callable[[Any], object], what: Any) -> None:
        with contextlib.suppress(AccessDenied):
            act(what)
            raise Violation("A1", f"an application without rights uses {what}")
