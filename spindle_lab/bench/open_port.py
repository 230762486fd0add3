"""The port of the API that a run is about: one of ours (app_ports.py), or a peer's (peer_ports.py)."""

from __future__ import annotations

from typing import Any

from spindle_lab.bench.app_ports import DdsPort, Port, SessionPort
from spindle_lab.bench.peer_ports import CyclonePort, IceoryxPort

KINDS: dict[str, type[DdsPort | SessionPort | CyclonePort | IceoryxPort]] = {
    "dds": DdsPort, "session": SessionPort, "cyclonedds": CyclonePort, "iceoryx2": IceoryxPort,
    "iceoryx2-polling": IceoryxPort,
}  # fmt: skip


def open_port(config: dict[str, Any]) -> Port:
    return KINDS[config["api"]](config)
