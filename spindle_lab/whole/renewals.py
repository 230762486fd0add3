"""Logged topics that programs give up, to be declared anew, and what must be so after that.

    N2  once a topic has begun anew, nobody who opens it takes what is older than that

When it begins is known by the node that makes it whole first. What was persisted before counts no more from then on;
until then it counts, whoever asked for what.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from spindle.errors import TopicInUse, TopicUnknown
from spindle.group.levels import Level
from spindle.restart.catching_up import CatchingUp
from spindle_lab.whole.violation import Violation

if TYPE_CHECKING:
    from spindle.group.topics import TopicSpec
    from spindle.group.view import View
    from spindle.restart.chain import Standing
    from spindle_lab.whole.programs import Program, Reading
    from spindle_lab.whole.world import World

GIVEN_UP = "has been given up"  # in the error for whoever opens a topic that is to be declared anew


@dataclasses.dataclass(frozen=True)
class Renewal:
    """The last time that a topic has begun anew: its messages are of this view and later ones."""

    since_ns: int
    first_view: int
    view: View


class Renewals:
    """Of one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.asked: set[str] = set()  # topics that somebody has wished to give up
        self.last: dict[str, Renewal] = {}  # by topic
        self.closing: dict[str, int] = {}  # topics that programs close, since so many wait for that

    def ask(self, program: Program, openings: Sequence[Callable[[TopicSpec], None]]) -> None:
        """A program gives up what a logged topic is, as soon as the others have closed it, and often opens it at once.
        It is declared anew as any that was deleted."""
        specs = [one for one in self._world.specs if one.level is Level.LOGGED]
        if not specs or self._world.finishing:
            return
        spec, rng = program.rng.choice(specs), program.rng
        self.closing[spec.name] = self.closing.get(spec.name, 0) + 1
        try:
            program.make_way()
            done = any(self._give_up(program, spec.name) for _ in range(rng.choice((1, 10, 30))))
        finally:
            self.closing[spec.name] -= 1
        if done and rng.random() < 0.8:
            rng.choice(openings)(spec)

    def _give_up(self, program: Program, topic: str) -> bool:
        session, deletions = program.session, self._world.checks.deletions[topic]
        assert session is not None
        program.doing = f"giving up what {topic!r} is"
        self.asked.add(topic)
        deletions.begun += 1
        try:
            session.redefine_topic(topic)
        except TopicUnknown:
            return False
        except TopicInUse:
            time.sleep(program.rng.choice((0.0005, 0.003)))
            return False
        finally:
            deletions.ended += 1
        self._world.met("what a topic is is given up")
        return True

    def is_closing(self, topic: str) -> bool:
        """Programs close it, and open it no more for a while."""
        return self.closing.get(topic, 0) > 0

    def may_be_told(self, kind: str, text: str) -> bool:
        """Of a program that has opened one that somebody gave up."""
        return kind == "TopicMismatch" and GIVEN_UP in text and bool(self.asked)

    def began(self, topic: str, standing: Standing, view: View) -> None:
        """A node has made it whole, with nothing."""
        if topic not in self.asked:
            raise Violation("N2", f"{topic!r} begins anew, and nobody has asked for that")
        world = self._world
        self.last[topic] = Renewal(world.system.now_ns, standing.lives[-1].first_view, view)
        for known in (world.checks.told_safe, world.checks.safe):
            for line in [line for line in known if line[1] == topic]:
                del known[line]
        world.met("a topic begins anew")

    def took(self, reading: Reading, view_id: int) -> None:
        """A reader has taken a message. Raises Violation."""
        last = self.last.get(reading.topic)
        if last is not None and view_id < last.first_view and reading.asked_ns > last.since_ns and (
                not reading.left_behind(last.view)):
            raise Violation("N2", f"{reading} takes a message of view {view_id} of a topic that has begun anew with "
                                  f"view {last.first_view}")
        if last is not None and view_id >= last.first_view:
            self._world.met("a message is taken of a topic that has begun anew")

    def is_before(self, topic: str, when_ns: int) -> bool:
        """The topic has begun anew since then."""
        return topic in self.last and when_ns < self.last[topic].since_ns

    def is_older(self, topic: str, view_id: int) -> bool:
        """A message of this view is older than the last beginning of the topic."""
        return topic in self.last and view_id < self.last[topic].first_view


@contextlib.contextmanager
def noted(world: World) -> Iterator[None]:
    """Has the world hear of topics that begin anew."""
    renew = CatchingUp._renew

    async def renews(self: Any, standing: Standing) -> None:
        settle = self._settle

        async def settles(one: Standing) -> None:
            await settle(one)
            world.renewals.began(self.local.spec.name, standing, self._view)

        self._settle = settles
        try:
            await renew(self, standing)
        finally:
            del self._settle

    with patch.object(CatchingUp, "_renew", renews):
        yield
