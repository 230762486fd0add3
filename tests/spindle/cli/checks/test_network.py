"""Goal: before a node starts, the doctor sees what would keep the others from it, or it from them.

Method: sockets on loopback in the role of other nodes, keys made for the test, answers of the name service replaced.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spindle.cli.checks import network
from spindle.cli.checks.base import FAIL, OK, WARN, Check, Machine
from spindle.config.settings import NodeConfig
from spindle.errors import AccessDenied
from spindle.security.trust import Trust
from tests.spindle.cli.checks.support import expect, put


def having(machine: Machine, **settings: object) -> Machine:
    settings = {"node_id": 1, "listen": "127.0.0.1:0", **settings}
    return dataclasses.replace(machine, config=NodeConfig(**settings))  # type: ignore[arg-type]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text(os.urandom(32).hex())
    file.chmod(stat.S_IRUSR)
    return file


@contextmanager
def listener() -> Iterator[tuple[socket.socket, str]]:
    """Somebody who listens and accepts, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock, f"127.0.0.1:{sock.getsockname()[1]}"


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback counts as another host's address, but for the node's own name."""
    monkeypatch.setattr("spindle.transport.network.is_own", lambda host, *_: host == "me.example")


def test_a_node_of_one_host_has_nothing_to_check(machine: Machine) -> None:
    expect(network.check_address(machine), OK, "on this host alone")
    for check in (network.check_keys, network.check_contacts, network.check_encryption, network.check_mtu):
        assert check(machine) is None


def test_address(machine: Machine) -> None:
    with listener() as (_, address):
        expect(network.check_address(having(machine, listen=address)), OK, "is in use", f"know it as {address}")
    expect(network.check_address(having(machine, listen=address)), OK, f"listens at {address}")
    expect(network.check_address(having(machine, listen="192.0.2.1:7402")), FAIL, "can't listen", "0.0.0.0:7402")
    expect(network.check_address(having(machine, advertise="192.0.2.1:7402")), WARN, "no address of this host",
           "advertise")
    expect(network.check_address(having(machine, listen=address, contacts=["192.0.2.9"])), WARN, "0.0.0.0:7402")
    expect(network.check_address(having(machine, listen=address, contacts=["127.0.0.9"])), OK, "none of the contacts")


def test_a_name_that_is_loopback_here(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Debian writes it into /etc/hosts for the host's own name."""
    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo",
                        lambda host, *rest, **more: real("127.0.1.1" if host == "me.example" else host, *rest, **more))
    node = having(machine, advertise="me.example:7402", contacts=["192.0.2.9", "me.example"])
    expect(network.check_address(node), WARN, "127.0.1.1 here", "/etc/hosts")


def test_keys(machine: Machine, secret: Path) -> None:
    expect(network.check_keys(having(machine)), OK, "loopback only")
    expect(network.check_keys(having(machine, listen="0.0.0.0:7402")), FAIL, "spindle keys")
    expect(network.check_keys(having(machine, listen="0.0.0.0:7402", plain=True)), WARN, "can do everything")
    expect(network.check_keys(having(machine, secret=secret)), OK, "shared secret")
    secret.chmod(0o644)
    expect(network.check_keys(having(machine, secret=secret)), FAIL, "chmod 600", "runuser")
    expect(network.check_keys(having(machine, secret=secret.parent / "none")), FAIL, "no such file")


def test_keys_that_end(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    trust = Trust("certificates")

    def of(_: NodeConfig) -> Trust:
        return trust

    monkeypatch.setattr(Trust, "of", of)
    for days, verdict, text in ((400, OK, "ends on "), (10, WARN, "in 9 days"), (-1, FAIL, "has ended")):
        trust.not_after = time.time() + days * 86400
        expect(network.check_keys(having(machine)), verdict, text)


def test_contacts(machine: Machine, elsewhere: None) -> None:
    def found(*contacts: str, **settings: object) -> Check | None:
        return network.check_contacts(having(machine, advertise="me.example:7402", plain=True,
                                             contacts=["me.example:7402", *contacts], **settings))

    expect(found(), OK, "no other host")
    with listener() as (_, there), listener() as (closed, gone):
        closed.close()
        expect(found(there), OK, "1 of 1 others answer")
        expect(found(there, gone), WARN, "1 of 2", f"{gone}: nobody listens", "enough are there")
        expect(found(gone), WARN, "0 of 1", "1 must be there", "firewall")
        expect(found(there, gone, form="all"), WARN, "2 must be there")
        expect(found(there, "host.invalid"), FAIL, "host.invalid:7402: its name", "/etc/hosts")


def test_contacts_that_do_not_believe_this_node(machine: Machine, elsewhere: None, secret: Path) -> None:
    """Method: the other end has the same secret, then another one."""
    from spindle.security.tls import secured_blocking

    other = secret.with_name("other")
    other.write_text(os.urandom(32).hex())
    other.chmod(stat.S_IRUSR)
    refusals: list[str] = []
    orderly: list[bool] = []

    def serve(sock: socket.socket, trust: Trust) -> None:
        conn, _ = sock.accept()
        with conn:
            try:
                stream, _ = secured_blocking(conn, trust, server_side=True, timeout_s=10)
                conn.settimeout(10)
                while not stream.ended:
                    stream.unseal(conn.recv(1000))
                orderly.append(True)
            except AccessDenied as error:
                refusals.append(str(error))

    for theirs, verdict, text in ((secret, OK, "1 of 1"), (other, WARN, "0 of 1")):
        with listener() as (sock, there):
            server = threading.Thread(target=serve, args=(sock, Trust.of(NodeConfig(secret=theirs))), daemon=True)
            server.start()
            node = having(machine, advertise="me.example:7402", secret=secret, contacts=["me.example:7402", there])
            expect(network.check_contacts(node), verdict, text)
            server.join(10)
    assert orderly == [True] and len(refusals) == 1, "who answers hears a goodbye, and has nothing to complain of"
    unreadable = having(machine, advertise="me.example:7402", secret=secret.with_name("none"), contacts=["a.example"])
    expect(network.check_contacts(unreadable), WARN, "not asked", "keys")


def test_encryption(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert network.check_encryption(having(machine)) is None
    asked_for = having(machine, encrypt=True)
    monkeypatch.setattr("spindle.security.ktls.available", lambda: "")
    expect(network.check_encryption(asked_for), OK, "module tls")
    monkeypatch.setattr("spindle.security.ktls.available",
                        lambda: "the kernel can't encrypt connections (no): whatever")
    expect(network.check_encryption(asked_for), FAIL, "modprobe tls")


def test_a_name_server_that_does_not_answer(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for once, not once for each name; and what isn't known is not guessed."""
    together = threading.Barrier(3)

    def nothing(host: str) -> list[object]:
        if host.endswith(".example"):
            together.wait(20)
        return []

    monkeypatch.setattr("spindle.transport.network.addresses_of", nothing)
    node = having(machine, listen="0.0.0.0:7402", contacts=["a.example", "b.example", "c.example"])
    expect(network.check_address(node), WARN, "unless it is one of the contacts", "name service")
    assert network.check_mtu(node) is None
    known = having(machine, listen="127.0.0.1:7402", advertise="127.0.0.1:7402", contacts=node.config.contacts)
    expect(network.check_address(known), WARN, "no address of this host")


def test_frames_of_a_host_with_ipv6_alone(machine: Machine) -> None:
    node = having(machine, listen="[::1]:7402")
    assert network.check_mtu(node) is None
    put(machine, "/proc/net/if_inet6", "fe800000000000000000000000000001 02 40 20 80     eth0\n"
                                       "00000000000000000000000000000001 01 80 10 80       lo\n")
    put(machine, "/sys/class/net/lo/mtu", "65536")
    expect(network.check_mtu(node), OK, "lo: MTU 65536")


def test_frames(machine: Machine) -> None:
    assert network.interface_of(machine, "127.0.0.1") == "lo" and network.interface_of(machine, "192.0.2.1") == ""
    node = having(machine, listen="127.0.0.1:7402")
    assert network.check_mtu(node) is None, "this /sys tells nothing"
    put(machine, "/sys/class/net/lo/mtu", "1500")
    expect(network.check_mtu(node), OK, "lo: MTU 1500")
    put(machine, "/sys/class/net/lo/speed", "25000")
    expect(network.check_mtu(node), OK, "25,000 Mbit/s")
    put(machine, "/sys/class/net/lo/device/vendor", "0x15b3")
    expect(network.check_mtu(node), WARN, "25,000 Mbit/s", "mtu 9000")
    put(machine, "/sys/class/net/lo/mtu", "9000")
    expect(network.check_mtu(node), OK)
