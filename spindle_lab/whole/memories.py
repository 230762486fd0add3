"""K1 to K5: what must hold of links (`spindle.links`) in a run. The programs that use them: `linking`.

    K1  an add is carried out once; at most once, where who asked was told that its connection was cut, or nothing in
        time; and what one add found no other one finds
    K2  what is read of a region was written there, into that life of it
    K3  messages of one link come in the order in which they were sent, and none twice; one of which the sender was told
        that it lies at the receiver is there, as long as the receiver is
    K4  a call is carried out at most once, and its answer is that of its own
    K5  nothing fails where nothing has gone wrong; and whatever has, in the end every program reaches every node's
        regions and ports
"""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING

from spindle_lab.whole.violation import Violation

if TYPE_CHECKING:
    from spindle_lab.whole.system import Process
    from spindle_lab.whole.world import World

WORD = struct.Struct("<Q")
TEXT = struct.Struct("<QQ")  # of a message: its link, and its number among those of that link
REGION_BYTES = 64  # word 0 says which life it is, word 1 is what programs change


@dataclasses.dataclass(eq=False)
class Life:
    """One region from its offer to its end. `writer`: the node whose programs write it, in its life of that number; 0:
    all add to it."""

    serial: int
    node_id: int
    name: str
    writer: int
    process: Process
    writer_life: int = 0
    open: bool = True
    there: bool = False  # its offer has come back
    begun: int = 0  # adds that may be carried out, or were
    done: int = 0  # adds that were carried out for sure
    found: set[int] = dataclasses.field(default_factory=set)  # what adds were told that was there before them
    written: set[int] = dataclasses.field(default_factory=lambda: {0})

    def __str__(self) -> str:
        return f"region {self.name!r} of node {self.node_id} (life {self.serial})"


@dataclasses.dataclass(eq=False)
class Listener:
    """One port from its binding to its end."""

    node_id: int
    port: int
    process: Process
    open: bool = True
    last_of: dict[int, int] = dataclasses.field(default_factory=dict)  # link -> number of its last message here
    owed: set[tuple[int, int]] = dataclasses.field(default_factory=set)  # said to lie here, and not taken yet
    taken: set[tuple[int, int]] = dataclasses.field(default_factory=set)

    def __str__(self) -> str:
        return f"port {self.port} of node {self.node_id}"


class Memories:
    """All regions and ports of a run, and what was told of them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.lives: list[Life] = []
        self.listeners: list[Listener] = []
        self.serials = 0
        self.calls: set[tuple[int, int]] = set()  # that were carried out
        self.writing: dict[int, tuple[int, str]] = {}  # value -> node and name of the region where it may come now

    def next_serial(self) -> int:
        """Of a life, or of a link."""
        self.serials += 1
        return self.serials

    @property
    def excuse(self) -> bool:
        """Something has happened that may cost a request its connection."""
        return self.world.faulty or bool(self.world.short)

    # --- regions

    def offered(self, node_id: int, name: str, writer: int, process: Process) -> Life:
        """It is about to be: from now on somebody may find it."""
        life = Life(self.next_serial(), node_id, name, writer, process, self._served(writer))
        life.written |= {value for value, whose in self.writing.items() if whose == (node_id, name)}
        self.lives.append(life)
        return life

    def _served(self, node_id: int) -> int:
        return self.world.nodes[node_id - 1].served if node_id else 0

    def may_change(self, node_id: int, life: Life) -> bool:
        """Programs of that node may, for sure: a node that was started anew is another writer."""
        return not life.writer or (life.writer == node_id and life.writer_life == self._served(node_id))

    def lives_of(self, node_id: int, name: str) -> list[Life]:
        """All that have had this name there, the newest last."""
        return [one for one in self.lives if (one.node_id, one.name) == (node_id, name)]

    def living(self) -> list[Life]:
        """Those that their program has not ended, and that has not died."""
        return [one for one in self.lives if one.open and one.process.alive]

    def added(self, lives: list[Life], serial: int, found: int) -> None:
        """K1: an add was carried out, and this was there before it. Serial 0: the owner had not written yet which life
        it is, so it may be any of these."""
        life = _life(lives, serial)
        if life is None:
            return
        for one in lives:
            if one is not life:
                one.begun -= 1
        life.done += 1
        if found in life.found or found >= life.begun:
            raise Violation("K1", f"{life}: an add finds {found}, as another one did, or more than there were "
                                  f"({life.begun} were begun)")
        life.found.add(found)

    def read(self, lives: list[Life], before: dict[int, int], serial: int, value: int) -> None:
        """K1, K2: what was read. `before`: by life, the adds that had been carried out when it began."""
        life = _life(lives, serial)
        if life is None:
            return
        if life.writer:
            if value not in life.written:
                raise Violation("K2", f"{life}: a read finds {value}, which nobody wrote")
        elif not before[serial] <= value <= life.begun:
            raise Violation("K1", f"{life}: a read finds {value}; {before[serial]} adds had been carried out before "
                                  f"it, {life.begun} were begun")

    def last(self, life: Life, value: int) -> None:
        """K1: what its owner finds in it in the end."""
        if life.writer:
            if value not in life.written:
                raise Violation("K2", f"{life} has {value} in the end, which nobody wrote")
        elif not life.done <= value <= life.begun:
            raise Violation("K1", f"{life} has {value} in the end; {life.done} adds were carried out, "
                                  f"{life.begun} begun")

    # --- ports

    def bound(self, node_id: int, port: int, process: Process) -> Listener:
        """It is."""
        listener = Listener(node_id, port, process)
        self.listeners.append(listener)
        return listener

    def listening(self) -> list[Listener]:
        """Those that are bound, of programs that live."""
        return [one for one in self.listeners if one.open and one.process.alive]

    def at(self, node_id: int, port: int) -> Listener | None:
        """Who listens there now, as far as is known."""
        return next((one for one in reversed(self.listeners) if (one.node_id, one.port) == (node_id, port)
                     and one.open and one.process.alive), None)

    def sent(self, listener: Listener | None, link: int, number: int) -> None:
        """K3: the sender was told that it lies at whoever has listened all the time."""
        if listener is not None and listener.open and (link, number) not in listener.taken:
            listener.owed.add((link, number))

    def came(self, listener: Listener, data: bytes, call: bool) -> None:
        """K3, K4: a message was taken from the port."""
        link, number = TEXT.unpack(data)
        if listener.last_of.get(link, -1) >= number:
            raise Violation("K3", f"{listener}: message {number} of link {link} comes after message "
                                  f"{listener.last_of[link]}")
        listener.last_of[link] = number
        listener.taken.add((link, number))
        listener.owed.discard((link, number))
        if call:
            if (link, number) in self.calls:
                raise Violation("K4", f"call {number} of link {link} is carried out twice")
            self.calls.add((link, number))

    def answered(self, link: int, number: int, data: bytes) -> None:
        """K4: the caller has the answer."""
        if data != answer_to(TEXT.pack(link, number)) or (link, number) not in self.calls:
            raise Violation("K4", f"call {number} of link {link} is answered with {data!r}")

    def unsettled(self) -> str:
        """What has still to come."""
        for one in self.listening():
            if one.owed:
                return f"{one} has {len(one.owed)} messages that nobody has taken"
        return next((f"{one.process} has not reached {one.lacks}" for one in self.world.linking
                     if one.process.alive and one.process.result is None and one.lacks), "")


def _life(lives: list[Life], serial: int) -> Life | None:
    """K2: that of which somebody has read the serial; None for 0, which its owner has not written yet."""
    life = next((one for one in lives if one.serial == serial), None)
    if life is None and serial:
        raise Violation("K2", f"life {serial} of a region is found, which had {[one.serial for one in lives]}")
    return life


def answer_to(data: bytes) -> bytes:
    """What a call comes to."""
    return data[::-1] + b"!"
