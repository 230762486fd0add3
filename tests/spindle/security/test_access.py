"""Access: the kernel's word about the peer, and the access list applied to it.

Method: credentials of a real socket pair; permissions for invented peers against configurations with each kind of rule.
"""

from __future__ import annotations

import os
import socket

import pytest

from spindle.config.settings import AccessRule, NodeConfig
from spindle.errors import AccessDenied
from spindle.security.access import PeerCredentials, Permissions

STRANGER = PeerCredentials(pid=4321, uid=54321, gid=54321, groups=frozenset({54321, 700}))
OWN = PeerCredentials(pid=os.getpid(), uid=os.geteuid(), gid=os.getegid(), groups=frozenset({os.getegid()}))


def test_credentials_of_a_socket_are_those_of_its_maker() -> None:
    """Goal: pid, uid, gid and groups come from the kernel. Method: a socket pair of our own."""
    one, other = socket.socketpair()
    with one, other:
        found = PeerCredentials.of(one)
    assert (found.pid, found.uid, found.gid) == (os.getpid(), os.geteuid(), os.getegid())
    assert found.groups == frozenset(os.getgroups()) | {os.getegid()}


def test_without_rules_only_the_own_user_attaches() -> None:
    """Goal: the default is private. Method: ourselves and a stranger against the default configuration."""
    own = Permissions(NodeConfig(), OWN)
    assert own.may_publish("anything") and own.may_subscribe("anything")
    with pytest.raises(AccessDenied, match=r"user 54321 \(process 4321\) may not attach.*\[access\]"):
        Permissions(NodeConfig(), STRANGER)


@pytest.mark.parametrize("config", [NodeConfig(allow_uids=(54321,)), NodeConfig(allow_gids=(700,))])
def test_admitted_users_may_do_everything_without_rules(config: NodeConfig) -> None:
    """Goal: allow_uids and allow_gids admit. Method: a stranger named by uid and by a supplementary group."""
    Permissions(config, STRANGER).check_publish("flight/altitude")
    Permissions(config, STRANGER).check_subscribe("flight/altitude")


def test_rules_decide_by_topic() -> None:
    """Goal: globs over the whole name, apart for publishing and subscribing; denials name user, topic and cure.
    Method: one rule of two patterns, topics inside and outside of it."""
    rule = AccessRule(uid=54321, publish=("cockpit/*",), subscribe=("flight/*", "alert?"))
    permissions = Permissions(NodeConfig(allow_uids=(54321,), access_rules=(rule,)), STRANGER)
    permissions.check_publish("cockpit/lights")
    permissions.check_subscribe("flight/altitude")
    permissions.check_subscribe("alert1")
    permissions.check_declare("flight/altitude")
    with pytest.raises(AccessDenied, match=r"may not publish topic .*publish of a rule"):
        permissions.check_publish("flight/altitude")
    with pytest.raises(AccessDenied, match="may not subscribe to topic 'cockpit/lights'"):
        permissions.check_subscribe("cockpit/lights")
    with pytest.raises(AccessDenied, match="neither publish nor subscribe to topic 'Alert1'"):
        permissions.check_declare("Alert1")
    assert not permissions.may_see("alert12")


def test_a_stranger_without_a_rule_of_his_may_attach_but_do_nothing() -> None:
    """Goal: as soon as there are rules they are complete. Method: a rule about somebody else."""
    config = NodeConfig(allow_uids=(54321,), access_rules=(AccessRule(uid=1, publish=("*",), subscribe=("*",)),))
    permissions = Permissions(config, STRANGER)
    assert not permissions.may_see("flight/altitude")
