"""Prints what pyverbs says of this host's RDMA devices, as JSON: a program for the interpreter that has pyverbs.

Why a program of its own: pyverbs speaks the private ABI of one release of rdma-core, so the one to use is that of the
system, and only the system's Python has it. Needs nothing but it and the standard library; `spindle.rdma.devices` runs
it and reads what it prints.

Prints {"devices": [...]}, or {"missing": why} where there is no pyverbs, or {"unfit": why} where it can't be loaded.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

LIMITS = ("max_qp", "max_qp_wr", "max_sge", "max_cq", "max_cqe", "max_mr", "max_mr_size", "max_pd", "max_qp_rd_atom",
          "max_qp_init_rd_atom")
STATES = {1: "down", 2: "init", 3: "armed", 4: "active", 5: "active, deferred"}
LAYERS = {1: "InfiniBand", 2: "Ethernet"}
MTU_BYTES = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
LANES = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
GBITS_OF_A_LANE = {1: 2.5, 2: 5, 4: 10, 8: 10, 16: 14, 32: 25, 64: 50, 128: 100, 256: 200}


def interface_name(index: int) -> str:
    try:
        return socket.if_indextoname(index) if index else ""
    except OSError:
        return ""


def gids_of(context: Any, number: int, enums: Any, size: int) -> list[dict[str, Any]]:
    """Those that are set. `number`: of the port."""
    kinds = {enums.IBV_GID_TYPE_IB: "IB", enums.IBV_GID_TYPE_ROCE_V1: "RoCE v1", enums.IBV_GID_TYPE_ROCE_V2: "RoCE v2"}
    return [{"index": entry.gid_index, "address": str(context.query_gid(number, entry.gid_index)),
             "kind": kinds.get(entry.gid_type, "unknown"), "interface": interface_name(entry.ndev_ifindex)}
            for entry in context.query_gid_table(size) if entry.port_num == number]


def port_of(context: Any, number: int, enums: Any, size: int) -> dict[str, Any]:
    port = context.query_port(number)
    lanes, each = LANES.get(port.active_width, 0), GBITS_OF_A_LANE.get(port.active_speed, 0)
    return {"number": number, "state": STATES.get(port.state, "unknown"), "layer": LAYERS.get(port.link_layer, ""),
            "mtu": MTU_BYTES.get(port.active_mtu, 0), "mtu_max": MTU_BYTES.get(port.max_mtu, 0), "lid": port.lid,
            "rate": "%g Gb/sec" % (lanes * each) if lanes and each else "",
            "gids": gids_of(context, number, enums, size)}


def device_of(module: Any, enums: Any, name: str) -> dict[str, Any]:
    with module.Context(name=name) as context:
        facts = context.query_device()
        ports = range(1, facts.phys_port_cnt + 1)
        size = sum(context.query_port(number).gid_tbl_len for number in ports)
        return {"name": name, "firmware": facts.fw_version.rstrip("\0"),
                "limits": {limit: int(getattr(facts, limit)) for limit in LIMITS},
                "ports": [port_of(context, number, enums, size) for number in ports]}


def look() -> dict[str, Any]:
    try:
        import pyverbs.device as module
        import pyverbs.enums as enums
        from pyverbs.pyverbs_error import PyverbsError
    except ModuleNotFoundError as error:
        kind = "missing" if (error.name or "").partition(".")[0] == "pyverbs" else "unfit"
        return {kind: str(error)}
    except ImportError as error:
        return {"unfit": str(error)}
    try:
        names = [device.name.decode() for device in module.get_device_list()]
    except PyverbsError:
        return {"devices": []}  # the kernel has no RDMA
    found, problems = [], []
    for name in sorted(names):
        try:
            found.append(device_of(module, enums, name))
        except PyverbsError as error:
            problems.append(f"{name}: {error}")
    return {"devices": found, "problems": problems}


if __name__ == "__main__":
    json.dump(look(), sys.stdout)
