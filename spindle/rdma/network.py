"""On which network an RDMA device is, so that nodes know before they try whether their devices reach each other, and
how long it waits for one that doesn't answer.

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
import math
import socket
import struct
from pathlib import Path

from spindle.rdma.devices import Port, chosen, sysfs_devices

PREFIX_V6 = 64  # bits of an IPv6 network
RDMA_ATTEMPTS = 7  # the first one and the retries of VerbsFabric
ACK_TIMEOUT_MIN = 14  # 67 ms: less would take a busy host for a broken network
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


def ack_timeout(suspect_timeout_s: float) -> int:
    """How long an RDMA device waits for an acknowledgement before it sends again: 4.096 us * 2 ** the result.
    All its attempts together last as long as a member may be silent, so a network that pauses for less costs nobody
    its membership."""
    return min(31, max(ACK_TIMEOUT_MIN, math.ceil(math.log2(suspect_timeout_s / RDMA_ATTEMPTS / 4.096e-6))))
