"""How long an end of a connection between hosts bears a silent other one, as its socket options say."""

from __future__ import annotations

import dataclasses
import socket
from typing import ClassVar


@dataclasses.dataclass
class Patience:
    """How long an end of a connection bears a silent other one, in seconds: its TCP options, by the kernel's names."""

    keepalive: bool = False
    keepidle: float = 7200
    keepintvl: float = 75
    keepcnt: int = 9
    user_timeout: float = 0  # none: what is sent is sent again for a quarter of an hour

    OPTIONS: ClassVar[dict[tuple[int, int], tuple[str, float]]] = {
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE): ("keepalive", 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): ("keepidle", 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): ("keepintvl", 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): ("keepcnt", 1),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT): ("user_timeout", 1e-3),
    }

    def set(self, level: int, option: int, value: int) -> None:
        """As setsockopt. Other options change nothing."""
        if (level, option) in self.OPTIONS:
            name, unit = self.OPTIONS[level, option]
            setattr(self, name, value * unit)

    @property
    def unanswered_s(self) -> float:
        """How long what is sent may stay without an answer."""
        return self.user_timeout or 900

    @property
    def silent_s(self) -> float:
        """How long nothing may come, with keepalive. TCP_USER_TIMEOUT replaces the number of probes, see tcp(7)."""
        return max(self.keepidle + self.keepintvl, self.user_timeout or self.keepidle + self.keepintvl * self.keepcnt)
