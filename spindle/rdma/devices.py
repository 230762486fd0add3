"""RDMA devices of this host: their ports, addresses and limits, as the doctor and the node see them.

Two sources say the same. /sys needs neither rights nor libraries and takes no time, so the node reads that. pyverbs
asks the device itself, and knows also its limits and the packets that a port agreed on. It has to fit the system's
rdma-core, so it is asked in the system's Python, or in this one if it is there, by a program (`spindle/rdma/probe.py`)
that takes about 100 ms.

Rules: nothing is opened for traffic. What can't be read is left out and not raised; a host without RDMA has no devices.
What a source doesn't say is 0, "" or None.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SYSTEM_PYTHON = "/usr/bin/python3"
PROBE = Path(__file__).with_name("probe.py")
PROBE_TIMEOUT_S = 30.0
STATES = {"1": "down", "2": "init", "3": "armed", "4": "active", "5": "active, deferred"}
ROCE_BYTES = ((4096, 4200), (2048, 2200), (1024, 1100), (512, 600), (256, 300))  # path MTU, and that of the interface
GET_IT = "apt-get install python3-pyverbs"


@dataclass(frozen=True)
class Gid:
    """An address of a port. `kind`: "IB", "RoCE v1" or "RoCE v2"; `interface`: the network interface under it."""

    index: int
    address: ipaddress.IPv6Address
    kind: str
    interface: str = ""

    @property
    def ipv4(self) -> ipaddress.IPv4Address | None:
        """The IPv4 address that it stands for, if any."""
        return self.address.ipv4_mapped

    def __str__(self) -> str:
        return str(self.ipv4 or self.address)


@dataclass(frozen=True)
class Port:
    """`state`: down, init, armed or active; `layer`: "Ethernet" or "InfiniBand"; `mtu`: bytes of a packet, from /sys
    only for Ethernet: what fits the frames of its interface, as the kernel chooses it."""

    number: int
    state: str
    layer: str
    mtu: int = 0
    mtu_max: int = 0
    lid: int = 0
    rate: str = ""
    gids: tuple[Gid, ...] = ()

    @property
    def active(self) -> bool:
        return self.state == "active"

    @property
    def source(self) -> Gid | None:
        """The address that the fabric takes: RoCE v2 over IPv4, else over IPv6; on InfiniBand the first."""
        if self.layer == "InfiniBand":
            return self.gids[0] if self.gids else None
        fit = [gid for gid in self.gids if gid.kind == "RoCE v2"]
        return next((gid for gid in fit if gid.ipv4 is not None), fit[0] if fit else None)


@dataclass(frozen=True)
class Limits:
    """Named as verbs name them: how many queue pairs, completion queues, regions and protection domains a device has in
    all; entries of a queue; bytes of a region; reads and atomics that a connection serves, and has on the way, at once.
    """

    max_qp: int
    max_qp_wr: int
    max_sge: int
    max_cq: int
    max_cqe: int
    max_mr: int
    max_mr_size: int
    max_pd: int
    max_qp_rd_atom: int
    max_qp_init_rd_atom: int


@dataclass(frozen=True)
class Device:
    name: str
    firmware: str
    ports: tuple[Port, ...]
    limits: Limits | None = None

    def port(self, number: int = 1) -> Port | None:
        return next((port for port in self.ports if port.number == number), None)

    def active(self, number: int = 1) -> bool:
        port = self.port(number)
        return port is not None and port.active


@dataclass(frozen=True)
class DeviceList:
    """`source`: who said it, for people. `unfit`: (interpreter, why) of each pyverbs that can't be loaded; `problems`:
    devices that couldn't be asked, and why."""

    devices: tuple[Device, ...]
    source: str
    unfit: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()


def chosen(devices: Sequence[Device], name: str = "", port: int = 1) -> Device | None:
    """The device that the node takes: the named one, else the first one with an active port, else the first."""
    if name:
        return next((device for device in devices if device.name == name), None)
    return next((device for device in devices if device.active(port)), devices[0] if devices else None)


# ---- /sys ----------------------------------------------------------------------------------------------------------


def sysfs_devices(root: Path = Path("/")) -> tuple[Device, ...]:
    """All devices as /sys below `root` says, by name."""
    places = sorted((root / "sys/class/infiniband").glob("*"))
    return tuple(Device(at.name, _read(at / "fw_ver"), tuple(_port(root, at / "ports" / str(number))
                                                             for number in _numbers(at / "ports"))) for at in places)


def _port(root: Path, at: Path) -> Port:
    layer, lid = _read(at / "link_layer"), _read(at / "lid")
    gids = tuple(_gids(at, layer))
    interface = next((gid.interface for gid in gids if gid.interface), "")
    frame = _read(root / "sys/class/net" / interface / "mtu") if interface and layer == "Ethernet" else ""
    mtu = next((size for size, least in ROCE_BYTES if int(frame) >= least), 256) if frame.isdigit() else 0
    return Port(int(at.name), STATES.get(_read(at / "state").partition(":")[0], "unknown"), layer, mtu=mtu,
                lid=int(lid, 16) if lid.startswith("0x") else 0, rate=_read(at / "rate"), gids=gids)


def _gids(at: Path, layer: str) -> Iterator[Gid]:
    for index in _numbers(at / "gids"):
        try:
            address = ipaddress.IPv6Address(_read(at / "gids" / str(index)))
        except ValueError:
            continue
        if int(address):
            kind = _read(at / "gid_attrs/types" / str(index))
            if kind == "IB/RoCE v1":
                kind = "IB" if layer == "InfiniBand" else "RoCE v1"
            yield Gid(index, address, kind, _read(at / "gid_attrs/ndevs" / str(index)))


def _numbers(directory: Path) -> list[int]:
    try:
        return sorted(int(entry.name) for entry in directory.iterdir() if entry.name.isdigit())
    except OSError:
        return []


def _read(path: Path) -> str:
    """The text of a file; empty also if it can't be read, as the type of an unused GID can't."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


# ---- pyverbs -------------------------------------------------------------------------------------------------------


def interpreters() -> list[str]:
    """Those that may have a pyverbs: the system's first, and this one if something of that name is installed for it."""
    own = [sys.executable] if sys.executable and importlib.util.find_spec("pyverbs") is not None else []
    system = [SYSTEM_PYTHON] if Path(SYSTEM_PYTHON).exists() else []
    return system + [path for path in own if not system or not Path(path).samefile(SYSTEM_PYTHON)]


def ask(interpreter: str) -> dict[str, Any]:
    """What the probe prints, run by that interpreter; {"missing": why} where it doesn't run."""
    try:
        ran = subprocess.run([interpreter, "-I", str(PROBE)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                             timeout=PROBE_TIMEOUT_S, check=False)
        answer = json.loads(ran.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"missing": str(error)}
    except ValueError:
        return {"missing": (ran.stderr.strip().splitlines() or [f"exit status {ran.returncode}"])[-1]}
    return answer if isinstance(answer, dict) else {"missing": "it printed something else"}


def parsed(device: dict[str, Any]) -> Device:
    """A device as the probe writes it. Raises KeyError, TypeError or ValueError if it isn't one."""
    ports = tuple(Port(**{**port, "gids": tuple(Gid(**{**gid, "address": ipaddress.IPv6Address(gid["address"])})
                                                for gid in port["gids"])}) for port in device["ports"])
    return Device(device["name"], device["firmware"], ports, Limits(**device["limits"]))


def discover(root: Path = Path("/")) -> DeviceList:
    """All devices by name: what pyverbs says of each where one can be used, else what /sys does. Without a device
    nothing is asked, and below another root than that of this machine there are only files."""
    devices = {device.name: device for device in sysfs_devices(root)}
    source, unfit, problems = "/sys", [], ()
    for interpreter in interpreters() if devices and root == Path("/") else ():
        answer = ask(interpreter)
        if "unfit" in answer:
            unfit.append((interpreter, str(answer["unfit"])))
        elif source == "/sys" and "devices" in answer:
            devices.update((device["name"], parsed(device)) for device in answer["devices"])
            source, problems = f"pyverbs of {interpreter}", tuple(answer.get("problems", ()))
    return DeviceList(tuple(devices[name] for name in sorted(devices)), source, tuple(unfit), problems)
