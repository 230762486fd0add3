"""Programs that have a node in their own process (`spindle.client.embedding`): both live and die together.

What such a program does is what others do, but that its session and its node end with each other: it detaches when the
node is to leave, and whatever ends the node ends the program.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from spindle.client.embedding import EmbeddedNode, embed
from spindle.errors import SpindleError
from spindle_lab.whole.programs import Program, Reading, Writing

if TYPE_CHECKING:
    from spindle.applications.attachment import Attachments
    from spindle.client.session import Session
    from spindle_lab.whole.slots import EmbeddedSlot
    from spindle_lab.whole.system import System
    from spindle_lab.whole.world import World


class SimEmbeddedNode(EmbeddedNode):
    """`EmbeddedNode` in a run, which hears when it serves and why it ended."""

    system: System

    def _on_ready(self, attachments: Attachments) -> None:
        self.system.current.on_embedded(attachments)
        super()._on_ready(attachments)

    def _run(self) -> None:
        super()._run()
        self.system.current.embedded_error = self._error


class Embedding(Program):
    """A program with a node of its own."""

    def __init__(self, world: World, slot: EmbeddedSlot) -> None:
        assert slot.process is not None
        self.slot = slot
        self.leaving = False  # it was asked to, or the run is over
        self.idle = False  # it has nothing open any more, and is asked for nothing
        slot.process.on_embedded = slot.serves
        super().__init__(world, slot.node_id, slot.host, process=slot.process)

    @property
    def ended(self) -> bool:
        return self.idle or super().ended

    def _attach(self) -> Session:
        return embed(config=self.world.config(self.slot), name=str(self.process))

    def _main(self) -> None:
        problem: BaseException | None = None
        try:
            self.doing = "embedding a node"
            self.session = self._attach()
            self._live()
        except (SpindleError, TimeoutError, OSError) as error:
            problem = error
        finally:
            self._forget()
        problem = self.process.embedded_error or problem
        self.slot.ended("left" if problem is None else f"{type(problem).__name__}: {problem}")

    def _live(self) -> None:
        """With one session, until its node ends or is to leave."""
        assert self.session is not None
        while self._goes_on() and not self.world.over:
            try:
                self._act()
            except (SpindleError, TimeoutError, OSError) as error:
                self._failed(error)
                self._close_all()
                time.sleep(0.02)
        self._close_all()
        while self._goes_on():
            self.idle = True
            time.sleep(0.01)
        self.doing = "leaving"

    def _goes_on(self) -> bool:
        return super()._goes_on() and not self.leaving

    def _close_all(self) -> None:
        assert self.session is not None
        ports: list[Reading | Writing] = [*self.readings, *self.writings]
        self.readings.clear()
        self.writings.clear()
        for one in ports:  # all before the first is closed: it may be killed while that goes on
            one.open = False
        for one in ports:
            if not self.session.gone:
                try:
                    one.close()
                except (SpindleError, TimeoutError, OSError) as error:
                    self._failed(error)

    def _go_away(self) -> None:
        """It would take its node along; `leave` does that."""
