"""Checks of RDMA: is there a device, can this user use it, and as what will the others reach it.

Most is read from /sys, which needs neither rights nor libraries; the last one opens the device as a node does.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import resource

from spindle.cli.checks.base import FAIL, OK, WARN, Check, Machine

TOPICS_GOOD = 10  # that locked memory should be enough for
DEVICES, VERBS = "/sys/class/infiniband", "spindle_core.fabric.verbs_device"
ROCE_BYTES = ((4096, 4200), (2048, 2200), (1024, 1100), (512, 600), (256, 300))  # path MTU, and that of the interface
NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


def devices(machine: Machine) -> list[str]:
    """Names of the RDMA devices that the node may use, most preferred first."""
    found = machine.names(DEVICES)
    wanted = machine.config.rdma_device
    if wanted:
        return [wanted] if wanted in found else []
    return sorted(found, key=lambda name: not _is_active(machine, name))


def _not_for(machine: Machine) -> bool:
    """True where this node never uses RDMA, or has no device for it: then only check_devices() speaks."""
    return machine.config.fabric in ("shm", "tcp") or not devices(machine)


def _trouble(machine: Machine) -> str:
    """How bad it is that RDMA can't be used: TCP takes its place, unless the node may use nothing else."""
    return FAIL if machine.config.fabric == "verbs" else WARN


def _of_port(machine: Machine, device: str, name: str) -> str:
    return machine.read(f"{DEVICES}/{device}/ports/1/{name}") or ""


def _is_active(machine: Machine, device: str) -> bool:
    return _of_port(machine, device, "state").endswith("ACTIVE")


def check_devices(machine: Machine) -> Check:
    config, found = machine.config, machine.names(DEVICES)
    if config.fabric in ("shm", "tcp"):
        return Check("rdma", OK, f'not used: [network] fabric = "{config.fabric}"')
    if config.rdma_device and config.rdma_device not in found:
        there = ", ".join(found) or "none"
        return Check("rdma", _trouble(machine), f"no device {config.rdma_device}; there is {there}",
                     "set [network] rdma_device to one that `rdma link` shows, or leave it empty")
    if not found and config.fabric == "verbs":
        return Check("rdma", FAIL, 'no device, and [network] fabric is "verbs"',
                     "load the driver of the card (`rdma link` must show it), or set fabric to auto or tcp")
    if not found:
        return Check("rdma", OK, "no device: other hosts are reached over TCP")
    return Check("rdma", OK, f"{', '.join(found)}; the node takes {devices(machine)[0]}")


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
    device = devices(machine)[0]
    state = _of_port(machine, device, "state").partition(": ")[2] or "unknown"
    layer, rate = _of_port(machine, device, "link_layer"), _of_port(machine, device, "rate")
    text = f"{device} port 1 {state.lower()}, {layer or 'unknown link layer'}{f', {rate}' if rate else ''}"
    if state != "ACTIVE":
        return Check("rdma port", _trouble(machine), text,
                     "plug it in and bring its interface up (`rdma link`, `ip link`); InfiniBand also needs a subnet "
                     "manager")
    interface = next((name for _, _, _, name in addresses(machine, device) if name), "")
    mtu = machine.read(f"/sys/class/net/{interface}/mtu") if interface and layer == "Ethernet" else None
    if mtu is not None and mtu.isdigit():
        path_mtu = next((size for size, least in ROCE_BYTES if int(mtu) >= least), 256)
        text += f", {interface} with MTU {mtu}: packets of {path_mtu} bytes"
        if path_mtu < ROCE_BYTES[0][0]:
            return Check("rdma port", WARN, text, f"RoCE is faster with packets of 4096: `ip link set {interface} mtu "
                                                  "9000` on all hosts, if the switches carry them")
    return Check("rdma port", OK, text)


def addresses(machine: Machine, device: str) -> list[tuple[int, str, str, str]]:
    """GIDs of port 1 that are set: index, GID, type ("RoCE v2"), network interface."""
    found = []
    for name in sorted((one for one in machine.names(f"{DEVICES}/{device}/ports/1/gids") if one.isdigit()), key=int):
        gid = _of_port(machine, device, f"gids/{name}")
        if gid and gid != NO_GID:
            found.append((int(name), gid, _of_port(machine, device, f"gid_attrs/types/{name}"),
                          _of_port(machine, device, f"gid_attrs/ndevs/{name}")))
    return found


def check_addresses(machine: Machine) -> Check | None:
    """RoCE is routed and paused by switches as what it is only in version 2, over an IP address."""
    if _not_for(machine):
        return None
    device = devices(machine)[0]
    found = addresses(machine, device)
    if _of_port(machine, device, "link_layer") != "Ethernet":
        return Check("rdma addresses", OK, f"{len(found)} GIDs; LID {_of_port(machine, device, 'lid') or 'unknown'}")
    fit = [one for one in found if one[2] == "RoCE v2"]
    if not fit:
        kinds = ", ".join(sorted({kind for _, _, kind, _ in found})) or "none"
        return Check("rdma addresses", _trouble(machine), f"{device} has no RoCE v2 GID (types: {kinds})",
                     "give its network interface an IP address, and allow RoCE v2 in the driver")
    ipv4 = [one for one in fit if re.match(r"0000:0000:0000:0000:0000:ffff:", one[1])]
    index, gid, _, interface = (ipv4 or fit)[0]
    text = f"RoCE v2, GID {index}: {_gid_text(gid)} on {interface or 'no interface'}"
    if not ipv4:
        return Check("rdma addresses", WARN, text,
                     f"an IPv4 address on {interface or 'its interface'} is what routers and switches are set up for")
    return Check("rdma addresses", OK, text)


def _gid_text(gid: str) -> str:
    import ipaddress

    address = ipaddress.IPv6Address(gid)
    return str(address.ipv4_mapped or address)


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
    return Check("rdma use", OK, f"{devices(machine)[0]} can be opened, GID {_gid_text(device.gid_bytes.hex(':', 2))}")


def pinned_bytes(machine: Machine) -> tuple[int, int]:
    """(nodes, bytes that one topic of the default size pins on this node if all nodes write it)."""
    from spindle.layout import ring_bytes
    from spindle.topics import TopicSpec

    config = machine.config
    nodes = max(2, len(config.contacts))
    spec = TopicSpec("any").with_window(config.default_size_max, config.default_window)
    return nodes, nodes * ring_bytes(spec)


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
