"""On which network an RDMA device is, so that nodes know before they try whether their devices reach each other.

InfiniBand: the subnet prefix of the port's first GID. RoCE v2: the IPv4 network of the interface under the device, or
the IPv6 prefix of its GID; reliable connections could go through a router, but whether that keeps packets from getting
lost as RoCE wants it can't be seen from here, so only one subnet counts as reaching.

Rules: everything is read from /sys and the interface, nothing is opened. No device, a port that isn't active or an
address that can't be told is "": the node goes on without.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

DEVICES = Path("/sys/class/infiniband")
PREFIX_V6 = 64  # bits of an IPv6 network
_SIOCGIFNETMASK = 0x891B
_ACTIVE = "4:"


def rdma_network(name: str = "", port: int = 1, devices: Path = DEVICES) -> str:
    """The network of the device, "" if there is none. `name` empty: the first device whose port is active."""
    found = [devices / name] if name else sorted(devices.iterdir()) if devices.is_dir() else []
    for device in found:
        at = device / "ports" / str(port)
        if _read(at / "state").startswith(_ACTIVE):
            return _infiniband(at) if _read(at / "link_layer") == "InfiniBand" else _roce(at)
    return ""


def _infiniband(port: Path) -> str:
    gid = _gid(port, 0)
    return f"infiniband {gid >> 64:016x}" if gid else ""


def _roce(port: Path) -> str:
    """IPv4 before IPv6, as the fabric chooses its GID."""
    others = ""
    for entry in sorted((port / "gids").iterdir(), key=lambda one: int(one.name)):
        index = int(entry.name)
        if _read(port / "gid_attrs" / "types" / entry.name) != "RoCE v2":
            continue
        address = ipaddress.IPv6Address(_gid(port, index))
        if address.ipv4_mapped is not None:
            mask = _netmask(_read(port / "gid_attrs" / "ndevs" / entry.name))
            if mask:
                return f"roce {ipaddress.ip_network(f'{address.ipv4_mapped}/{mask}', strict=False)}"
        elif not others and not address.is_link_local:
            others = f"roce {ipaddress.ip_network(f'{address}/{PREFIX_V6}', strict=False)}"
    return others


def _netmask(interface: str) -> str:
    """Of the interface's first IPv4 address."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        asked = fcntl.ioctl(sock, _SIOCGIFNETMASK, struct.pack("256s", interface.encode()[:15]))
        return socket.inet_ntoa(asked[20:24])
    return ""


def _gid(port: Path, index: int) -> int:
    text = _read(port / "gids" / str(index)).replace(":", "")
    try:
        return int(text, 16)
    except ValueError:
        return 0


def _read(path: Path) -> str:
    """"" also where the kernel has nothing to say, which reading an unused GID's type answers with an error."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
