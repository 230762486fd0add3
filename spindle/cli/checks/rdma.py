"""Checks of RDMA: is there a device, can this user use it, and as what will the others reach it.

Facts are those of `spindle.rdma.devices`: from pyverbs where the system has it, else from /sys, which needs neither
rights nor libraries. One check opens the device as a node does.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import resource
from ipaddress import IPv6Address
from pathlib import Path

from spindle.cli.checks.base import FAIL, OK, WARN, Check, Machine
from spindle.rdma.devices import GET_IT, SYSTEM_PYTHON, Device, DeviceList, Gid, Port, chosen, discover

TOPICS_GOOD = 10  # that locked memory should be enough for
VERBS = "spindle_core.fabric.verbs_device"
PACKET_GOOD = 4096
QUEUE_GOOD = 256  # work requests that a queue should take


@functools.cache
def _of_this_machine() -> DeviceList:
    return discover()


def found(machine: Machine) -> DeviceList:
    """Its devices; of the real machine asked once."""
    return _of_this_machine() if machine.root == Path("/") else discover(machine.root)


def taken(machine: Machine) -> Device | None:
    """The device that the node takes."""
    return chosen(found(machine).devices, machine.config.rdma_device)


def _not_for(machine: Machine) -> bool:
    """True where this node never uses RDMA, or has no device for it: then only check_devices() speaks."""
    return machine.config.fabric in ("shm", "tcp") or taken(machine) is None


def _trouble(machine: Machine) -> str:
    """How bad it is that RDMA can't be used: TCP takes its place, unless the node may use nothing else."""
    return FAIL if machine.config.fabric == "verbs" else WARN


def _port(machine: Machine) -> tuple[Device, Port]:
    """What the node takes; a port of which nothing is known where it isn't there."""
    device = taken(machine)
    assert device is not None, "asked behind _not_for()"
    return device, device.port() or Port(1, "not there", "")


def check_devices(machine: Machine) -> Check:
    config = machine.config
    if config.fabric in ("shm", "tcp"):
        return Check("rdma", OK, f'not used: [network] fabric = "{config.fabric}"')
    names, device = [one.name for one in found(machine).devices], taken(machine)
    if config.rdma_device and device is None:
        there = ", ".join(names) or "none"
        return Check("rdma", _trouble(machine), f"no device {config.rdma_device}; there is {there}",
                     "set [network] rdma_device to one that `rdma link` shows, or leave it empty")
    if device is None and config.fabric == "verbs":
        return Check("rdma", FAIL, 'no device, and [network] fabric is "verbs"',
                     "load the driver of the card (`rdma link` must show it), or set fabric to auto or tcp")
    if device is None:
        return Check("rdma", OK, "no device: other hosts are reached over TCP")
    return Check("rdma", OK, f"{', '.join(names)}; the node takes {device.name}")


def check_facts(machine: Machine) -> Check | None:
    """From where the facts are; a pyverbs that can't be loaded misleads whoever installed it."""
    if _not_for(machine):
        return None
    facts = found(machine)
    for interpreter, why in facts.unfit:
        text = f"facts from {facts.source}; pyverbs of {interpreter} does not fit this system's rdma-core: {why}"
        if interpreter == SYSTEM_PYTHON:
            return Check("rdma facts", WARN, text, "install python3-pyverbs, libibverbs1 and ibverbs-providers of one "
                                                   "release (`apt-get install` all three)")
        return Check("rdma facts", WARN, text,
                     f"the one on PyPI has a private ABI of its own release: `{interpreter} -m pip uninstall pyverbs`, "
                     f"and take the system's: `{GET_IT}`")
    if facts.problems:
        return Check("rdma facts", _trouble(machine), f"{facts.source} could not open {facts.problems[0]}",
                     "look at the rights to /dev/infiniband, and whether `ibv_devinfo` can open it")
    if facts.source == "/sys":
        return Check("rdma facts", OK, f"from /sys, which has no limits of a device (pyverbs has: `{GET_IT}`)")
    return Check("rdma facts", OK, f"from {facts.source}")


def check_module(machine: Machine) -> Check | None:
    """The part of the core that speaks verbs was built, and finds its library."""
    if _not_for(machine):
        return None
    if importlib.util.find_spec(VERBS) is None:
        return Check("rdma module", _trouble(machine), "Spindle was built without it",
                     "install libibverbs-dev (rdma-core-devel), then build again: `make ext`, or the package anew")
    try:
        importlib.import_module(VERBS)
    except ImportError as error:
        return Check("rdma module", _trouble(machine), f"it can't be loaded: {error}",
                     "install libibverbs1 and ibverbs-providers (rdma-core)")
    return Check("rdma module", OK, "built, and libibverbs is there")


def check_rights(machine: Machine) -> Check | None:
    """/dev/infiniband/uverbs*: what a program opens to use a device."""
    if _not_for(machine):
        return None
    files = [name for name in machine.names("/dev/infiniband") if name.startswith("uverbs")]
    if not files:
        return Check("rdma rights", _trouble(machine), "no /dev/infiniband/uverbs*",
                     "load the kernel module ib_uverbs; in a container: --device /dev/infiniband")
    closed = [name for name in files if not os.access(machine.path(f"/dev/infiniband/{name}"), os.R_OK | os.W_OK)]
    if closed:
        return Check("rdma rights", _trouble(machine), f"user {os.getuid()} may not use /dev/infiniband/{closed[0]}",
                     "install rdma-core, whose udev rules allow it, or let the node's user read and write it")
    return Check("rdma rights", OK, f"/dev/infiniband/{', '.join(files)}")


def check_ports(machine: Machine) -> Check | None:
    """The port is up, and its frames are large enough for large packets."""
    if _not_for(machine):
        return None
    device, port = _port(machine)
    rate = f", {port.rate}" if port.rate else ""
    text = f"{device.name} port 1 {port.state}, {port.layer or 'unknown link layer'}{rate}"
    if not port.active:
        return Check("rdma port", _trouble(machine), text,
                     "plug it in and bring its interface up (`rdma link`, `ip link`); InfiniBand also needs a subnet "
                     "manager")
    text += f", packets of {port.mtu} bytes" if port.mtu else ""
    interface = next((gid.interface for gid in port.gids if gid.interface), "") if port.layer == "Ethernet" else ""
    frame = machine.read(f"/sys/class/net/{interface}/mtu") if interface else None
    text += f" ({interface} with MTU {frame})" if frame else ""
    if interface and 0 < port.mtu < PACKET_GOOD:
        return Check("rdma port", WARN, text, f"RoCE is faster with packets of 4096: `ip link set {interface} mtu "
                                              "9000` on all hosts, if the switches carry them")
    return Check("rdma port", OK, text)


def check_addresses(machine: Machine) -> Check | None:
    """RoCE is routed and paused by switches as what it is only in version 2, over an IP address."""
    if _not_for(machine):
        return None
    device, port = _port(machine)
    if port.layer != "Ethernet":
        return Check("rdma addresses", OK, f"{len(port.gids)} GIDs; LID {port.lid:#x}")
    gid = port.source
    if gid is None:
        kinds = ", ".join(sorted({one.kind for one in port.gids})) or "none"
        return Check("rdma addresses", _trouble(machine), f"{device.name} has no RoCE v2 GID (types: {kinds})",
                     "give its network interface an IP address, and allow RoCE v2 in the driver")
    text = f"RoCE v2, GID {gid.index}: {gid} on {gid.interface or 'no interface'}"
    if gid.ipv4 is None:
        return Check("rdma addresses", WARN, text, f"an IPv4 address on {gid.interface or 'its interface'} is what "
                                                   "routers and switches are set up for")
    return Check("rdma addresses", OK, text)


def check_limits(machine: Machine) -> Check | None:
    """What the device has of each is enough for the connections of two views, as a change of views needs them."""
    device = None if _not_for(machine) else taken(machine)
    if device is None or device.limits is None:
        return None
    limits, pairs = device.limits, 2 * (nodes_to_come(machine) - 1)
    text = (f"{limits.max_qp:,} queue pairs of {limits.max_qp_wr:,} work requests, {limits.max_cq:,} completion queues,"
            f" {limits.max_mr:,} regions, {limits.max_qp_rd_atom} reads at once")
    if limits.max_qp < pairs or limits.max_cq < 4 or limits.max_qp_wr < QUEUE_GOOD:
        return Check("rdma limits", WARN, f"{text}; wanted: {pairs} and {QUEUE_GOOD:,}, 4 completion queues",
                     "raise them in the driver, or use another device: [network] rdma_device")
    return Check("rdma limits", OK, text)


def check_opening(machine: Machine) -> Check | None:
    """Opens the device as a node does; on the real machine only."""
    if _not_for(machine) or not machine.root.samefile("/") or importlib.util.find_spec(VERBS) is None:
        return None
    from spindle_core.errors import RdmaUnavailable

    try:
        device = importlib.import_module(VERBS).VerbsDevice(machine.config.rdma_device)
    except ImportError:
        return None  # said by check_module()
    except RdmaUnavailable as error:
        what, _, advice = str(error).partition(": ")
        return Check("rdma use", _trouble(machine), what, advice or "look at the lines above")
    return Check("rdma use", OK, f"{device.name} can be opened, GID {Gid(0, IPv6Address(device.gid_bytes), '')}")


def nodes_to_come(machine: Machine) -> int:
    return max(2, len(machine.config.contacts))


def pinned_bytes(machine: Machine) -> tuple[int, int]:
    """(nodes, bytes that one topic of the default size pins on this node if all nodes write it)."""
    from spindle.group.layout import sender_bytes
    from spindle.group.topics import TopicSpec

    config = machine.config
    nodes = nodes_to_come(machine)
    spec = TopicSpec("any").with_window(config.default_size_max, config.default_window)
    return nodes, nodes * sender_bytes(spec)


def check_locked_memory(machine: Machine) -> Check | None:
    """What is registered with a device is pinned, and counts: the rings of all members, the own ones and copies."""
    if _not_for(machine):
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return Check("locked memory", OK, "unlimited")
    nodes, each = pinned_bytes(machine)
    text = (f"limit {soft >> 10} KiB, enough for {soft // each} topics of the default size that {nodes} nodes write "
            f"({each >> 10} KiB each)")
    advice = "RDMA pins its memory: `ulimit -l unlimited`; spindle.service says LimitMEMLOCK=infinity"
    if soft < each:
        return Check("locked memory", _trouble(machine), text, advice)
    return Check("locked memory", OK if soft // each >= TOPICS_GOOD else WARN, text,
                 "" if soft // each >= TOPICS_GOOD else advice)
