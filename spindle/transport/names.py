"""What names of hosts stand for, for those who go from node to node: programs on hosts without one, and edges.

The node that they lose may take the name server with it, and then they must still find the next one. So all names are
looked up when the first node is found, by threads; later too, but where the answer doesn't come soon, the last one
counts.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from spindle.config.keys import is_literal, split_address
from spindle.errors import ConnectionEnded
from spindle.locks import Condition

Found = tuple[int, int, int, str, Any]  # of getaddrinfo()
SOON_S = 0.5  # so long a name server is waited for where its last answer is known


class HostNames:
    """Of these addresses, each host:port. Any thread may ask."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self._addresses = tuple(one for one in addresses if not is_literal(split_address(one)[0]))
        self._said: dict[str, Sequence[Found]] = {}  # by address: what the name server has said last
        self._problems: dict[str, str] = {}  # why it has said nothing when it was asked last
        self._asking: dict[str, threading.Thread] = {}
        self._since: dict[str, float] = {}  # monotonic s: when these began
        self._told = Condition()

    def begin(self) -> None:
        """Asks for all of them, and doesn't wait."""
        with self._told:
            for address in self._addresses:
                self._ask(address)

    def found(self, address: str, timeout_s: float) -> Sequence[Found]:
        """What the address stands for, as getaddrinfo() has it for streams. Raises ConnectionEnded if nobody has ever
        said, and does not within this time."""
        host, port = split_address(address)
        if is_literal(host):
            try:
                return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
            except OSError as error:  # a scope that this host doesn't have
                raise ConnectionEnded(f"the node at {address} cannot be reached: {error.strerror or error}") from None
        with self._told:
            self._ask(address)
            until = self._since[address] + (SOON_S if address in self._said else timeout_s)
            while address in self._asking and (left := until - time.monotonic()) > 0:
                self._told.wait(left)
            if address in self._said:
                return self._said[address]
            why = self._problems.get(address, f"no name server says within {timeout_s:g} s what {host} stands for")
        raise ConnectionEnded(f"the node at {address} cannot be reached: {why}")

    async def found_by_task(self, address: str, timeout_s: float) -> Sequence[Found]:
        """The same for a loop."""
        import asyncio  # which programs that have no loop do without

        if is_literal(split_address(address)[0]):
            return self.found(address, timeout_s)
        return await asyncio.get_running_loop().run_in_executor(None, self.found, address, timeout_s)

    def _ask(self, address: str) -> None:
        """Has a thread ask, unless one has got no answer yet."""
        asking = self._asking.get(address)
        if asking is not None and asking.ident is not None:
            return
        self._since[address] = time.monotonic()
        self._asking[address] = thread = threading.Thread(
            target=self._look_up, args=(address,), name="spindle names", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # there may be no more threads
            del self._asking[address]
            self._problems[address] = str(error)

    def _look_up(self, address: str) -> None:
        host, port = split_address(address)
        said: Sequence[Found] = ()
        problem = "its name has no address"
        try:
            said = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            problem = error.strerror or str(error)
        with self._told:
            if said:
                self._said[address] = said
                self._problems.pop(address, None)
            else:
                self._problems[address] = problem
            if self._asking.get(address) is threading.current_thread():
                del self._asking[address]
            self._told.notify_all()
