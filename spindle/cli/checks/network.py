"""Checks of what other hosts need of this one, and this one of them. Without [network] there is nothing to look at."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from spindle.cli.checks.base import FAIL, OK, WARN, Check, Machine
from spindle.config.keys import split_address
from spindle.errors import ConfigError, ConnectionEnded, SpindleError

Look = Callable[[str], Sequence[Any]]  # as addresses_of() of spindle.transport.network
ANSWER_TIMEOUT_S = 2.0  # of one contact; all are asked at once
ASKED_AT_ONCE = 32
FAST_MBITS = 10_000
JUMBO_BYTES = 9000
SIOCGIFADDR = 0x8915


def _alone(machine: Machine) -> bool:
    return machine.config.listen is None and not machine.config.contacts


def listening_at(machine: Machine) -> tuple[str, int]:
    """What [network] listen stands for: an address and a port. Raises OSError."""
    host, port = split_address(machine.config.listen or "127.0.0.1:0")
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return str(found[0][4][0]), port


def endpoint(machine: Machine, look: Look | None = None) -> str:
    """host:port by which the others will reach the node."""
    from spindle.transport.network import endpoint_of

    return endpoint_of(machine.config, listening_at(machine), look or looking(machine))


def looking(machine: Machine) -> Look:
    """What looks names up, those of the contacts all at once: a name server that doesn't answer takes its time."""
    from spindle.transport.network import addresses_of

    hosts = list(dict.fromkeys(split_address(contact)[0] for contact in machine.config.contacts))
    with ThreadPoolExecutor(min(ASKED_AT_ONCE, max(1, len(hosts)))) as pool:
        found = dict(zip(hosts, pool.map(addresses_of, hosts), strict=True))
    return lambda host: found[host] if host in found else addresses_of(host)


def check_address(machine: Machine) -> Check:
    """The node can listen where it shall, and the others look for it on this host."""
    from spindle.transport.network import is_own

    config, name = machine.config, "address"
    if _alone(machine):
        return Check(name, OK, "[network] listen is not set: the group is on this host alone")
    try:
        host, port = listening_at(machine)
        text = f"listens at {config.listen}"
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((host, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                text = f"{config.listen} is in use, by a node that runs or by somebody else"
    except OSError as error:
        return Check(name, FAIL, f"can't listen at {config.listen}: {error.strerror or error}",
                     "set [network] listen to an address of this host, or to 0.0.0.0:7402 for all of them")
    look = looking(machine)
    where = endpoint(machine, look)
    text += f", the others know it as {where}"
    own, _ = split_address(where)
    unknown = [contact for contact in config.contacts if not look(split_address(contact)[0])]
    if unknown and where not in config.contacts and not config.advertise:
        return Check(name, WARN, f"{text}, unless it is one of the contacts: that can't be said while names of these "
                                 f"can't be looked up ({', '.join(unknown[:3])}{', ...' if len(unknown) > 3 else ''})",
                     "look at the name service, or at /etc/hosts")
    if not is_own(own, look):
        return Check(name, WARN, f"{text}, which is no address of this host",
                     "right behind a translation of addresses, as in a container with its own network; else set "
                     "[network] advertise, or look at the name service")
    loopback = [str(found[4][0]) for found in socket.getaddrinfo(own, 0) if _is_loopback(str(found[4][0]))]
    if loopback and any(split_address(contact)[0] != own and not _is_loopback(split_address(contact)[0])
                        for contact in config.contacts):
        return Check(name, WARN, f"{text}, which is {loopback[0]} here", "set [network] listen to 0.0.0.0:7402" if
                     _is_loopback(own) else f"give {own} its address in the network in /etc/hosts, or set [network] "
                     "advertise")
    if config.contacts and where not in config.contacts:
        return Check(name, OK, f"{text}; none of the contacts, so it only joins a group that is there")
    return Check(name, OK, text)


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def check_keys(machine: Machine) -> Check | None:
    """They can be read, belong together and to this node, and last."""
    import time

    from spindle.security.identity import PLAIN
    from spindle.security.trust import Trust

    if _alone(machine):
        return None
    config, name = machine.config, "keys"
    try:
        trust = Trust.of(config)
    except ConfigError as error:
        return Check(name, FAIL, str(error),
                     "as it says; `spindle doctor` must look with the rights of the node's user (runuser -u spindle)")
    if trust.mode == PLAIN:
        if config.plain:
            return Check(name, WARN, "none: [network] plain",
                         "whoever reaches the port can do everything: only where the network is the group's own")
        if _is_loopback(listening_at(machine)[0]):
            return Check(name, OK, "none: this node listens on loopback only")
        return Check(name, FAIL, "none, and without keys only loopback is served",
                     "make some with `spindle keys`, and set certificate, key and authority, or secret, in [network]")
    soon = trust.ends_soon()
    if soon:
        return Check(name, WARN if "has ended" not in soon else FAIL, str(trust.identity), soon)
    if trust.not_after is None:
        return Check(name, OK, f"{trust.identity}")
    day = time.strftime("%Y-%m-%d", time.gmtime(trust.not_after))
    return Check(name, OK, f"{trust.identity}, ends on {day}")


def ask(machine: Machine, contact: str, trust: Any) -> str:
    """Connects as a node would, and goes away; empty if somebody who believes this node is there, else why not."""
    from spindle.transport.network import PLAIN

    host, port = split_address(contact)
    try:
        with socket.create_connection((host, port), timeout=ANSWER_TIMEOUT_S) as sock:
            if trust is None:
                sock.sendall(PLAIN)
                return ""
            from spindle.security.tls import secured_blocking

            stream, _ = secured_blocking(sock, trust, timeout_s=ANSWER_TIMEOUT_S)
            sock.settimeout(ANSWER_TIMEOUT_S)
            sock.sendall(stream.goodbye())  # so that no log there speaks of a connection that broke
            return ""
    except socket.gaierror as error:
        return f"its name can't be resolved ({error.strerror})"
    except ConnectionRefusedError:
        return "nobody listens"
    except ConnectionEnded as error:
        return f"it ended the connection ({error})"
    except SpindleError as error:
        return str(error)
    except TimeoutError:
        return "no answer: down, or a firewall"
    except OSError as error:
        return error.strerror or str(error)


def check_contacts(machine: Machine) -> Check | None:
    """Who of the others is there. That nobody is isn't wrong: somebody has to be the first."""
    from spindle.joining.contacts import enough
    from spindle.security.identity import PLAIN
    from spindle.security.trust import Trust
    from spindle.transport.network import is_own

    config, name = machine.config, "contacts"
    if _alone(machine):
        return None
    look = looking(machine)
    own = endpoint(machine, look)
    others = [contact for contact in config.contacts if contact != own and not is_own(split_address(contact)[0], look)]
    if not others:
        return Check(name, OK, "no other host is named in [network] contacts")
    try:
        trust = Trust.of(config)
    except ConfigError:
        return Check(name, WARN, "not asked, as the keys can't be used", "mend the keys first")
    with ThreadPoolExecutor(min(ASKED_AT_ONCE, len(others))) as pool:
        keys = None if trust.mode == PLAIN else trust
        answers = dict(zip(others, pool.map(lambda contact: ask(machine, contact, keys), others), strict=True))
    silent = {contact: why for contact, why in answers.items() if why}
    text = f"{len(others) - len(silent)} of {len(others)} others answer"
    if silent:
        shown = [f"{contact}: {why}" for contact, why in silent.items()]
        text += f" ({'; '.join(shown[:3])}{f'; and {len(shown) - 3} more' if len(shown) > 3 else ''})"
    needed = enough(config) - (own in config.contacts)
    if any("name can't be resolved" in why for why in silent.values()):
        return Check(name, FAIL, text, "a name that nobody knows is never found: mend it in [network] contacts, or in "
                                       "the name service or /etc/hosts")
    if len(others) - len(silent) < needed:
        return Check(name, WARN, text, f"{needed} must be there before a group is formed: start them, and let TCP port "
                                       f"{split_address(others[0])[1]} through each firewall, in both directions")
    if silent:
        return Check(name, WARN, text, "enough are there; if these shall run, look at them, and at the firewalls")
    return Check(name, OK, text)


def check_encryption(machine: Machine) -> Check | None:
    """Only where it is asked for: the kernel does it, and may lack the module."""
    if not machine.config.encrypt or _alone(machine):
        return None
    from spindle.security.ktls import NEEDED, available

    missing = available()
    if missing:
        return Check("encryption", FAIL, missing.removesuffix(f": {NEEDED}"), NEEDED)
    return Check("encryption", OK, "the kernel encrypts TCP connections (module tls)")


def interface_of(machine: Machine, address: str) -> str:
    """Name of the network interface that has this address; empty if none has."""
    if ":" in address:
        wanted = ipaddress.IPv6Address(address.partition("%")[0]).packed.hex()
        lines = map(str.split, (machine.read("/proc/net/if_inet6") or "").splitlines())
        return next((line[-1] for line in lines if line[0] == wanted), "")
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            answer = fcntl.ioctl(sock, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""


def check_mtu(machine: Machine) -> Check | None:
    """Frames of the network that the group uses: on fast ones, small frames cost more than the messages."""
    if _alone(machine):
        return None
    look = looking(machine)
    host, _ = split_address(endpoint(machine, look))
    name = next(filter(None, (interface_of(machine, str(one[4][0])) for one in look(host))), "")
    mtu = machine.read(f"/sys/class/net/{name}/mtu") if name else None
    if mtu is None or not mtu.isdigit():
        return None
    speed = machine.read(f"/sys/class/net/{name}/speed") or ""
    text = f"{name}: MTU {mtu}" + (f", {int(speed):,} Mbit/s" if speed.isdigit() else "")
    is_card = machine.path(f"/sys/class/net/{name}/device").exists()  # others say any speed
    if is_card and speed.isdigit() and int(speed) >= FAST_MBITS and int(mtu) < JUMBO_BYTES:
        return Check("frames", WARN, text, f"larger frames cost less for each message: `ip link set {name} mtu "
                                           f"{JUMBO_BYTES}` on all hosts, if the switches carry them")
    return Check("frames", OK, text)
