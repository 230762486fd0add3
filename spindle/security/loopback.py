"""Which user of this host is at the other end of a TCP connection that doesn't leave it.

Why: on loopback nodes talk without keys, and every user of the host can connect there. Over a Unix socket the kernel
says who it is; here it does in /proc/net/tcp, which has the owner of each socket, the other end's as well.

Rules: only a socket that a process holds counts. One that its process has closed already belongs to nobody, and the
table gives root for it.
"""

from __future__ import annotations

import ipaddress
import sys

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
Place = tuple[bytes, int]  # address (4 bytes where it is one of IPv4), port


def user_at(address: str, here: str) -> int | None:
    """The user id behind `address`, "host:port", which is connected to `here`; None if it can't be told."""
    theirs, ours = _place(address), _place(here)
    for table in TABLES:
        try:
            with open(table, encoding="ascii") as file:
                next(file)
                for line in file:
                    fields = line.split()
                    if _place_of(fields[1]) == theirs and _place_of(fields[2]) == ours and fields[9] != "0":
                        return int(fields[7])
        except (OSError, StopIteration):  # without IPv6, say
            continue
    return None


def _place(address: str) -> Place:
    host, _, port = address.rpartition(":")
    ip = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    return (getattr(ip, "ipv4_mapped", None) or ip).packed, int(port)


def _place_of(text: str) -> Place:
    """As the kernel prints it: words of 32 bits in this machine's order of bytes."""
    host, _, port = text.partition(":")
    raw = bytes.fromhex(host)
    if sys.byteorder == "little":
        raw = b"".join(raw[k:k + 4][::-1] for k in range(0, len(raw), 4))
    ip = ipaddress.ip_address(raw)
    return (getattr(ip, "ipv4_mapped", None) or ip).packed, int(port, 16)
