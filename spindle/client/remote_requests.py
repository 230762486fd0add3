"""What a session with a node on another host asks of it, and of the next one when that is gone.

Rules: any thread may ask. A request whose node goes away meanwhile is asked again at the next, so each must be safe to
repeat: what the dead node had opened for it is gone. `_changed` guards what the threads share, and is never held while
waiting for the network.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from spindle.client.calls import Call, Lost
from spindle.client.channel import check_usable, port_in
from spindle.client.remote_link import Link
from spindle.errors import NodeStopped, SpindleError, error_from_wire
from spindle.locks import Condition
from spindle.proto import attach_pb2 as pb
from spindle.proto import relay_pb2 as rb
from spindle.transport.wire import Frame

REQUEST_TIMEOUT_S = 30.0
SILENCE_S = 4.0


class RemoteRequests:
    """The base of `spindle.client.remote_channel.RemoteChannel`, whose keeper brings the answers."""

    _keeper: threading.Thread

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._forked = False
        self._changed = Condition()
        self._link: Link | None = None  # the present one, once all ports are open there
        self._serving: Link | None = None  # the last one at which all ports were open
        self._number = 0
        self._end_error: SpindleError | None = None

    def _take(self, link: Link, frame: Frame) -> None:
        """Handles one frame; raises the node's last word."""
        raise NotImplementedError

    # --- the present node

    @property
    def node_id(self) -> int:
        return self._serving.welcome.node_id if self._serving is not None else 0

    @property
    def node_pid(self) -> int:
        return self._serving.welcome.pid if self._serving is not None else 0

    @property
    def group_id(self) -> int:
        return self._serving.welcome.view.group_id if self._serving is not None else 0

    @property
    def address(self) -> str:
        return self._serving.address if self._serving is not None else ""

    @property
    def awaits(self) -> str:
        """As Session.awaits."""
        if self._link is not None or self.ended:
            return ""
        return f"a node: none serves now, the last one was {self._serving}"

    @property
    def end_error(self) -> SpindleError | None:
        return self._end_error

    @property
    def ended(self) -> bool:
        return self._end_error is not None or self._forked

    # --- requests

    def request(self, timeout_s: float = REQUEST_TIMEOUT_S, /, **body: Any) -> tuple[pb.Reply, Frame]:
        """As Channel.request; the frame has no descriptors."""
        deadline = time.monotonic() + timeout_s
        link: Link | None = None
        while True:
            link = self._present(deadline, body, link)
            try:
                return self._ask(link, deadline, **body), Frame(b"", [])
            except Lost:
                continue

    def _present(self, deadline: float, body: dict[str, Any], lost: Link | None) -> Link:
        """The link, waited for while there is none. `lost`: the one that was found to be over, which the keeper may not
        have noticed yet. Raises the end, or TimeoutError."""
        with self._changed:
            while True:
                self._check()
                if self._link is not None and not self._link.lost and self._link is not lost:
                    return self._link
                if not self._changed.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    raise TimeoutError(f"no node serves yet that could be asked ({next(iter(body))}); the last one was "
                                       f"{self._serving}")

    def _check(self) -> None:
        check_usable(self._forked, self._pid, self._end_error)

    def _ask(self, link: Link, deadline: float, **body: Any) -> pb.Reply:
        """Raises the node's refusal, Lost, TimeoutError."""
        call = self._send_call(link, body)
        try:
            self._await(link, call, deadline, next(iter(body)))
        except BaseException:  # also what a signal's handler raises
            self._abandon(link, call)
            raise
        if isinstance(call.error, NodeStopped) and self._loses(link, deadline):
            raise Lost
        if call.error is not None:
            raise call.error
        if call.reply is None:
            raise Lost
        return call.reply

    def _await(self, link: Link, call: Call, deadline: float, what: str) -> None:
        if threading.current_thread() is self._keeper:
            while not call.answered.is_set():
                self._take(link, link.receive(SILENCE_S))
        elif not call.answered.wait(max(0.0, deadline - time.monotonic())):
            raise TimeoutError(f"{link} did not answer {what} in time; it may be waiting for a view change "
                               "(see `spindle status`)")

    def _abandon(self, link: Link, call: Call) -> None:
        """Nobody has its answer, whenever that comes: what it opens is closed."""
        with self._changed:
            for number in [number for number, one in link.calls.items() if one is call]:
                del link.calls[number]
        if call.reply is not None and call.closings is None and (port := port_in(call.reply)):
            self._give_back(link, port)

    def _give_back(self, link: Link, port: int) -> None:
        """Nobody has what that number is of: it is closed without waiting for it, wherever it is open by now."""
        raise NotImplementedError

    def _loses(self, link: Link, deadline: float) -> bool:
        """The node says that it stops: the end of the connection follows. False if it doesn't."""
        if threading.current_thread() is self._keeper:
            return True  # it turns to the next
        with self._changed:
            while not link.lost and time.monotonic() < deadline:
                self._changed.wait(deadline - time.monotonic())
            return link.lost

    def _send_call(self, link: Link, body: dict[str, Any]) -> Call:
        call = Call()
        try:
            self._send_request(link, body, call)
        except BaseException:
            self._abandon(link, call)
            raise
        return call

    def _send_request(self, link: Link, body: dict[str, Any], call: Call | None = None) -> None:
        """`call`: who awaits the answer. Raises Lost."""
        with self._changed:
            if link.lost:
                raise Lost
            self._number = number = self._number % 0xFFFFFFFF + 1
            if call is not None:
                link.calls[number] = call
        link.send(rb.ClientSide(request=pb.Request(number=number, **body).SerializeToString()))

    def _answer(self, link: Link, message: pb.NodeFrame) -> None:
        """A reply or a refusal has come. Raises the node's last word, which answers nobody in particular."""
        refused = message.WhichOneof("body") == "refusal"
        number = message.refusal.number if refused else message.reply.number
        error = error_from_wire(message.refusal.kind, message.refusal.text) if refused else None
        if error is not None and number == 0:
            raise error
        port = 0 if refused else port_in(message.reply)
        with self._changed:
            call = link.calls.pop(number, None)
            if call is not None:  # at once, for _abandon()
                call.reply, call.error = message.reply, error
                if port and call.closings is not None:
                    call.closings.append(lambda: self._give_back(link, port))
        if call is not None:
            call.answered.set()
        elif port:
            self._give_back(link, port)


__all__ = ["REQUEST_TIMEOUT_S", "SILENCE_S", "RemoteRequests"]
