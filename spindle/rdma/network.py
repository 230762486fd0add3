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

from spindle.rdma.devices import Port, chosen, sysfs_devices

PREFIX_V6 = 64  # bits of an IPv6 network
_SIOCGIFNETMASK = 0x891B


def rdma_network(name: str = "", number: int = 1, root: Path = Path("/")) -> str:
    """The network of the device, "" if there is none. `name` empty: the first device whose port is active; `number`: of
    the port; `root`: in front of /sys."""
    device = chosen(sysfs_devices(root), name, number)
    port = device.port(number) if device is not None else None
    if port is None or not port.active:
        return ""
    if port.layer == "InfiniBand":
        return f"infiniband {int(port.gids[0].address) >> 64:016x}" if port.gids else ""
    return _roce(port)


def _roce(port: Port) -> str:
    """IPv4 before IPv6, as the fabric chooses its GID."""
    fit = [gid for gid in port.gids if gid.kind == "RoCE v2"]
    for gid in fit:
        mask = _netmask(gid.interface) if gid.ipv4 is not None else ""
        if mask:
            return f"roce {ipaddress.ip_network(f'{gid.ipv4}/{mask}', strict=False)}"
    wide = next((gid for gid in fit if gid.ipv4 is None and not gid.address.is_link_local), None)
    return f"roce {ipaddress.ip_network(f'{wide.address}/{PREFIX_V6}', strict=False)}" if wide is not None else ""


def _netmask(interface: str) -> str:
    """Of the interface's first IPv4 address."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        asked = fcntl.ioctl(sock, _SIOCGIFNETMASK, struct.pack("256s", interface.encode()[:15]))
        return socket.inet_ntoa(asked[20:24])
    return ""
