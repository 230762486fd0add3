"""Domains and participants: the way into a group.

A participant attaches to the daemon of its host. Without a daemon, `embedded()` or the environment variable
SPINDLE_EMBED=1 makes it run a node inside this process; participants of one process and domain then share that node.
On a host without a node, `remote()` or SPINDLE_NODES say where there are some. (`dds.nodes.ways` has the three.)

    participant = DomainParticipant()                                     # through the host's daemon
    participant = DomainParticipant.embedded()                            # with a node of its own process
    participant = DomainParticipant.remote(["host1", "host2:7402"], certificate=..., key=..., authority=...)
"""

from __future__ import annotations

import atexit
import functools
import os
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dds.entity import Entity, Participant, check_listener, entity_name
from dds.exceptions import DDSException, translate, unsupported
from dds.internal import dds_domain_default
from dds.listener import Listener
from dds.matching.announcing import encode_qos
from dds.matching.matching import ITSELF, Runtime
from dds.messages.order_groups import group_of, is_group
from dds.nodes.ways import DistantNode, EmbeddedNode, Way, configure, from_environment, switch, withdraw
from dds.policy import policies
from dds.qos import DomainParticipantQos, Qos
from dds.topic import Topic
from dds.waiting import reaper
from dds.waiting.wake import exit_begins
from spindle.group.endpoints import PARTICIPANT

if TYPE_CHECKING:
    from typing_extensions import Self

TIMEOUT_DEFAULT = 5_000_000_000  # for attaching, ns

_participants: weakref.WeakSet[DomainParticipant] = weakref.WeakSet()


class Domain(Entity):
    """A domain: an id, and the configuration for nodes that are embedded in this process.

    config  None, the path of a Spindle configuration file (TOML), or a spindle.config.settings.NodeConfig. It
            concerns embedded nodes only, those that start until the domain is closed; a daemon has its own. It stays
            where the Domain is only forgotten
    Raises DDSException (UNSUPPORTED) for an XML configuration of another DDS.
    """

    _configured: object = None  # what withdraws the configuration

    def __init__(self, domain_id: int, config: Any = None) -> None:
        self._id = _check_domain_id(domain_id)
        if isinstance(config, str) and (config.lstrip().startswith("<") or "://" in config):
            unsupported("an XML configuration", "give the path of a Spindle configuration (see docs/spindle.toml)")
        if config is not None:
            from spindle.config.loading import load_config

            try:
                loaded = load_config(config) if isinstance(config, (str, os.PathLike)) else config
            except (OSError, ValueError) as error:
                raise translate(error, "configuring the domain") from error
            self._configured = configure(self._id, loaded)
            if self._configured is None:
                raise DDSException(DDSException.DDS_RETCODE_PRECONDITION_NOT_MET,
                                   f"the embedded node of domain {domain_id} runs already: configure it before")
        self._enter(None, Qos(), None)

    def _give_back(self) -> None:
        withdraw(self._id, self._configured)
        super()._give_back()

    def get_participants(self) -> list[Entity]:
        """The participants of this process in the domain."""
        self._check_open()
        found = [one for one in list(_participants) if one._open and one.get_domain_id() == self._id]
        return sorted(found, key=lambda one: one._ref)

    get_children = get_participants
    children = property(get_participants)

    def get_domain_id(self) -> int:
        return self._id

    def get_participant(self) -> Participant:
        raise self._no("participant")

    def _guid(self) -> bytes:
        return b"domain".ljust(8, b"\0") + self._id.to_bytes(8, "big")


class DomainParticipant(Participant):
    """An application's place in a domain, and the parent of everything else.

    domain_id    0 to 232
    qos          a Qos with what concerns participants; EntityName is shown in listings
    listener     for statuses and data that no entity below it handles
    node_id      of the node of this host to attach to; None = any
    runtime_dir  where the daemons' sockets are; None = as configured by environment
    timeout      for attaching, ns
    reattach     what to do when the node goes away. False: everything ends with DDSNodeLost; True: look for another,
                 for as long as it takes; a number: for so many ns; None: as SPINDLE_REATTACH says (1 or 0; unset: 0)
    way          another way to a node than these (`dds.nodes.ways`), as embedded() and remote() take it; None = the
                 environment decides: SPINDLE_EMBED=1 embeds a node; SPINDLE_NODES names nodes on other hosts, for who
                 gives neither node_id nor runtime_dir; otherwise it is the host's daemon

    With `reattach`, readers go on where they stood, in the same order, and their statuses say whether samples may be
    missing; writers go on too, and tell what their node had not acknowledged (DataWriter.take_unacknowledged).
    Raises DDSNodeLost if there is no node, DDSException if it refuses.
    """

    _kind = "DomainParticipant"
    _limited_qos = DomainParticipantQos

    def __init__(self, domain_id: int = dds_domain_default, qos: Qos | None = None, listener: Listener | None = None,
                 *, node_id: int | None = None, runtime_dir: str | os.PathLike[str] | None = None,
                 timeout: int = TIMEOUT_DEFAULT, reattach: bool | int | None = None, way: Way | None = None) -> None:
        _check_domain_id(domain_id)
        own = policies.check("DomainParticipant", qos, DomainParticipantQos)
        check_listener(listener)
        if way is None:
            way = from_environment(node_id, runtime_dir)
        elif node_id is not None or runtime_dir is not None:
            raise TypeError("node_id and runtime_dir belong to the way, if one is given")
        if reattach is None:
            reattach = switch("SPINDLE_REATTACH")
        patience_s = None if reattach is True else reattach / 1e9
        attaching = functools.partial(way.attach, domain_id, entity_name(own), timeout / 1e9, patience_s)
        reaper.flush()  # entities that were forgotten must be closed before
        try:
            session = attaching()
        except Exception as error:
            raise way.refusal(error) from error
        release = functools.partial(way.release, domain_id)
        try:
            self._runtime = Runtime(session, release, None if reattach is False else attaching, patience_s)
        except BaseException:
            release(session)
            raise
        try:
            self._closer = self._runtime.close
            self._enter(None, own, listener)
            self._runtime.participant = weakref.ref(self)
            with self._runtime.asking("announcing the participant"):
                self._runtime.directory.announce(ITSELF, PARTICIPANT, "", encode_qos(own))
            if reattach is not False or listener is not None:
                self._runtime.watch()
        except BaseException:
            self._open = False
            self._runtime.close()
            raise
        _participants.add(self)
        _close_at_exit()
        _warn_of_other_settings()

    def _guid(self) -> bytes:
        return self._runtime.known_guid_of(ITSELF)

    def close(self) -> None:
        """Close the participant and everything below it. Idempotent."""
        if self._open:
            self._runtime.closing = True
        super().close()

    def _change_qos(self, following: Qos, said: Qos) -> None:
        self._revision += 1
        with self._runtime.asking("announcing the participant"):
            self._runtime.directory.announce(ITSELF, PARTICIPANT, "", encode_qos(following, revision=self._revision))
        self._qos = following

    @classmethod
    def embedded(cls, domain_id: int = dds_domain_default, qos: Qos | None = None, listener: Listener | None = None,
                 *, node_id: int | None = None, runtime_dir: str | os.PathLike[str] | None = None,
                 reattach: bool | int | None = None) -> Self:
        """A participant with a node inside this process, which all its participants of the domain share; with `node_id`
        or `runtime_dir` one of its own. What a Domain of this id configures concerns that node."""
        return cls(domain_id, qos, listener, reattach=reattach, way=EmbeddedNode(node_id, runtime_dir))

    @classmethod
    def remote(cls, nodes: Sequence[str] | str | None = None, domain_id: int = dds_domain_default,
               qos: Qos | None = None, listener: Listener | None = None, *, timeout: int = TIMEOUT_DEFAULT,
               reattach: bool | int | None = None, certificate: str | os.PathLike[str] | None = None,
               key: str | os.PathLike[str] | None = None, authority: str | os.PathLike[str] | None = None,
               secret: str | os.PathLike[str] | None = None) -> Self:
        """A participant at a node on another host.

        nodes   "host:port" or "host", any of which will do: when the present one goes, the session turns to the next,
                and readers and writers go on; what a dead one had not acknowledged is sent once. `reattach` says what
                to do when none of them serves. None = as SPINDLE_NODES says
        certificate, key, authority, secret   files, see spindle.client.nodes; None = as the environment says
        """
        way = DistantNode(nodes, certificate, key, authority, secret)
        return cls(domain_id, qos, listener, timeout=timeout, reattach=reattach, way=way)

    def assert_liveliness(self) -> None:
        """Say that the program lives, for its writers with Liveliness.ManualByParticipant. DDS 1.4, 2.2.2.2.1.21."""
        self._check_open()
        for one in self._runtime.vigils[:1]:  # which speaks for the others
            one.assert_liveliness()

    def find_topic(self, name: str, data_type: Any = bytes, *, keys: Sequence[str] = ()) -> Topic[Any] | None:
        """A Topic for the topic `name` if the group has it, else None; one in an order group if anybody has it open.
        Its type must be `data_type` with `keys`."""
        self._check_open()
        order = ""
        with self._runtime.asking("listing the topics"):
            known = self._runtime.session.topics()
            if all(one.spec.name != name or is_group(one.spec) for one in known):
                grouped = group_of(name, self._runtime.session, known)
                if grouped is None:
                    return None
                order = grouped[0]
        found = Topic(self, name, data_type, keys=keys, order=order)
        try:
            with self._runtime.asking(f"topic {name!r}"):
                found._adopt(anew=False)
        except BaseException:
            found.close()
            raise
        return found


def _check_domain_id(domain_id: Any) -> int:
    if not isinstance(domain_id, int) or isinstance(domain_id, bool):
        raise TypeError(f"a domain id is an int, not {domain_id!r}")
    from spindle.config.settings import DOMAIN_MAX

    if not 0 <= domain_id <= DOMAIN_MAX:
        raise DDSException(
            DDSException.DDS_RETCODE_BAD_PARAMETER, f"domain id {domain_id} is outside 0 to {DOMAIN_MAX}")
    return domain_id


@functools.cache
def _warn_of_other_settings() -> None:
    """Once in a process: what configures another DDS does nothing here."""
    if os.environ.get("CYCLONEDDS_URI"):
        import logging

        logging.getLogger("dds").warning(
            "CYCLONEDDS_URI is set: it configures Cyclone DDS and has no effect here; a Spindle daemon has its own "
            "configuration (docs/configuration.md), an embedded node that of Domain(domain_id, config)")


def _close_all() -> None:
    """At the end of the program: leave the group cleanly, and never hang because something is still open."""
    exit_begins()
    reaper.flush(2.0)
    for participant in list(_participants):
        try:
            participant.close()
        except Exception as error:
            import logging

            logging.getLogger("dds").debug("closing %r at exit: %s", participant, error)


@functools.cache
def _close_at_exit() -> None:
    """Registered only once there is a session, so that it runs before sessions end themselves: last in, first out."""
    atexit.register(_close_all)


__all__ = ["Domain", "DomainParticipant"]
