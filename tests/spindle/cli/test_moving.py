"""Goal: `spindle sub`, `pub` and `record` go on at a node that can't take their topic up yet, as one that was started
before the others of its group: they wait, and say so once; what will not pass ends them.

Method: stand-ins for nodes, of which the first ends and the second refuses what it is told to; Following, Sending and
Recorder in this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spindle.cli.common import Target
from spindle.cli.following import Following
from spindle.cli.recordings.bridge import NoFile
from spindle.cli.recordings.recorder import Recorder
from spindle.cli.sending import Sending
from spindle.errors import GroupSilent, JournalError, MembershipError
from spindle.group.topics import TopicInfo, TopicSpec
from tests.spindle.stand_in import StandInNode
from tests.support import wait_until

WAIT_S = 0.4  # of a Sending without a node
WAITS = GroupSilent("topic 't' could not be taken up within 15 s: it waits for node 2")


class Refusing(StandInNode):
    """Declares no topic as long as there are `refusals`; a group that is silent takes its time."""

    refusals: list[Exception]

    async def declare_topic(self, spec: TopicSpec) -> TopicInfo:
        if self.refusals:
            error = self.refusals.pop(0)
            if isinstance(error, GroupSilent):
                await asyncio.sleep(1.5 * WAIT_S)
            if isinstance(error, MembershipError):
                for app in list(self.attachments.apps.values()):
                    app.end(error)
            raise error
        return await super().declare_topic(spec)


@pytest.fixture
def nodes(runtime_dir: Path) -> Iterator[tuple[StandInNode, Refusing]]:
    directory = runtime_dir / "domain-0"
    directory.mkdir()
    with StandInNode(directory / "node-1.sock") as first, Refusing(directory / "node-2.sock") as second:
        yield first, second


def moved(how: str, nodes: tuple[StandInNode, Refusing], *refusals: Exception) -> None:
    """A reader or a writer of topic t whose node ends, and that uses the next one."""
    first, second = nodes
    second.refusals = list(refusals)
    with Target().attach("moves") as session:
        info = session.declare_topic(TopicSpec("t"))
        moving: Any = (
            Following(Target(), session, info, False, False, True) if how == "sub" else
            Sending(Target(), session, info, True, WAIT_S) if how == "pub" else
            Recorder(Target(), session, ["t"], NoFile(), False, False, True))  # type: ignore[arg-type]
        with moving:
            if how == "record":
                moving.look()
                wait_until(lambda: moving.take_up() or moving.tracks, what="the recorder's reader")
            first.stop()
            wait_until(lambda: session.gone, what="the end of the first node")
            if how == "sub":
                assert moving._go_on(moving._freeze(), None)
            elif how == "pub":
                moving.write([b"x"], 10.0)
            else:
                with ThreadPoolExecutor() as pool:
                    running = pool.submit(moving.run, None, None, lambda: None)
                    try:
                        wait_until(lambda: running.done() or moving.tracks["t"].session is not session,
                                   what="the recorder at the next node")
                    finally:
                        moving.stop()
                    running.result(10)
        assert not second.refusals


both = pytest.mark.parametrize("how", ["sub", "pub"])
all_of_them = pytest.mark.parametrize("how", ["sub", "pub", "record"])


@pytest.mark.slow
@both
def test_a_group_that_is_not_whole_yet_is_waited_for(how: str, nodes: tuple[StandInNode, Refusing],
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    moved(how, nodes, WAITS, WAITS)
    assert capsys.readouterr().err.count(f"{WAITS}; asking again") == 1


@all_of_them
def test_a_next_node_that_goes_itself(how: str, nodes: tuple[StandInNode, Refusing]) -> None:
    moved(how, nodes, MembershipError("impossible"))


@both
def test_what_will_not_pass_ends_it(how: str, nodes: tuple[StandInNode, Refusing]) -> None:
    with pytest.raises(JournalError, match="its disk is full"):
        moved(how, nodes, JournalError("its disk is full"))
